"""What `train.objective: reward` learns from rows of the task `preference`: a number for an answer, the model's only output.

Rows are made and packed as of `preference`; from training on, artifacts have this task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.kinds.kind import Kind, Row
from trnflow.tasks.kinds.preference import Preference
from trnflow.tasks.kinds.regression import CLOSE

if TYPE_CHECKING:
    from torch import Tensor

ANSWER = "completion"
"""The column of the answer that `trnflow predict` rewards."""


class Reward(Preference):
    name = "reward"
    per_row = True
    per_position = False
    auto_class = Kind.auto_class
    pipeline = Kind.pipeline
    adapter = Kind.adapter
    problem_type = "regression"  # a pipeline then shows the number, not its sigmoid
    metrics = tuple(
        metric._replace(may_promote=True, is_default=True) if metric.name == "reward_accuracy" else metric
        for metric in Preference.metrics
        if metric.name != "likelihood_accuracy"
    )
    answers = {"text": "string", "scores": "map"}

    def target_shape(self, rows: int, length: int, outputs: int) -> tuple[int, ...]:
        return (rows, length)

    def labels_of(self, settings: Any, train: Callable[[], Iterable[Row]], nested: Iterable[str]) -> list[str]:
        return [self.name]

    def values_of(self, logits: Tensor) -> Tensor:
        return logits

    def agree(self, first: Tensor, second: Tensor) -> Tensor:
        return ((first - second).abs() <= CLOSE * second.abs().clamp(min=1)).all(-1)

    def answer(self, values: list[float], labels: list[str], decision: Meta) -> Meta:
        return {"scores": dict(zip(labels, values, strict=True))}

    def line(self, answer: Meta) -> str:
        return f"{answer['scores'][self.name]:.4g}"
