"""The task `classification`: one class a row, from `data.label`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.kind import Kind, Row

TEMPERATURE = "temperature"
"""What is chosen of a classifier that is calibrated."""


class Classification(Kind):
    name = "classification"
    one_class = True
    problem_type = "single_label_classification"
    answers = {"text": "string", "label": "string", "probabilities": "map"}

    def columns(self, settings: Any) -> tuple[str, ...]:
        return ("label",)

    def check_rows(self, settings: Any, meta: Any) -> None:
        if meta["labels"] is None:
            raise ConfigError("format.task: classification needs labels, and the data has none", "set data.label")
        present = [name for name, count in meta.get("label_counts", {}).get("train", {}).items() if count]
        if len(present) == 1:
            raise DataError(
                f"format.task: classification needs two classes, and all rows of train are labelled {present[0]}",
                "give rows of other classes, or choose another column or rule with data.label",
            )

    def target_of(self, settings: Any, labels: list[str], nested: Iterable[str]) -> Callable[[Row, str], Any]:
        return lambda row, where: row["label"]

    def said_of(self, decision: Meta) -> str:
        if TEMPERATURE not in decision:
            return ""
        return (
            f"Its probabilities are calibrated: the last layer's weights are those of training, divided by "
            f"{decision[TEMPERATURE]}, which was chosen on validation rows."
        )

    def answer(self, values: list[float], labels: list[str], decision: Meta) -> Meta:
        best = max(range(len(values)), key=values.__getitem__)
        return {"label": labels[best], "probabilities": dict(zip(labels, values, strict=True))}

    def line(self, answer: Meta) -> str:
        return f"{max(answer['probabilities'].values()):.3f}  {answer['label']}"
