"""The task `token_classification`: a tag of each word in the scheme IOB (O, B-TYPE, I-TYPE), such as entities.

Rows are words and their tags, or a text with spans of characters. The first piece of a word is labelled. Outputs are O,
then B and I of each type, so that the number of an output says what it is: 2 t + 1 begins type t, 2 t + 2 goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.entities import entities_in, found_in, grouped, of_pieces, of_row, score, scores_of, share
from trnflow.tasks.kinds.kind import IGNORED, Metric, Row
from trnflow.tasks.kinds.label_names import alike
from trnflow.tasks.kinds.tagged_words import (
    OUTSIDE,
    cut,
    inside,
    spans_of,
    tagged,
    tags_of,
    type_of,
    units_in,
    written_in,
)
from trnflow.tasks.kinds.targets import Outputs, TargetKind, value_of

if TYPE_CHECKING:
    from torch import Tensor


class TokenClassification(TargetKind):
    name = "token_classification"
    per_position = True
    takes_made_rows = True
    settings = ("target", "labels", "words")
    auto_class = "AutoModelForTokenClassification"
    pipeline = "token-classification"
    opener = 'transformers.pipeline("token-classification", model=FOLDER, aggregation_strategy="first")'
    adapter = "TOKEN_CLS"
    metrics = (
        Metric("span_f1", of_row, score(2), hub="f1", may_promote=True, is_default=True),
        Metric("span_precision", of_row, score(0), hub="precision", may_promote=True),
        Metric("span_recall", of_row, score(1), hub="recall", may_promote=True),
        Metric("accuracy", of_pieces, lambda sums, rows: share(sums[..., 1], sums[..., 0]), hub="accuracy", may_promote=True),
        Metric(
            "loss", of_pieces, lambda sums, rows: share(sums[..., 2], sums[..., 0]), less_is_better=True, hub="loss",
            may_promote=True,
        ),
    )  # fmt: skip
    plots = {"f1_of_types.png": "F1 of each type"}
    answers = {"text": "string", "entities": "entities"}

    def check_settings(self, settings: Any) -> None:
        if not isinstance(settings.target, str):
            raise ValueError("`target` is one column of tags or of spans")
        if settings.make or settings.prompt_template:
            raise ValueError("`make` and `prompt_template` make another text than the one whose words are tagged")

    def columns(self, settings: Any) -> tuple[str, ...]:
        return (*settings.targets, *([settings.words] if settings.words else []))

    def check_rows(self, settings: Any, meta: Any) -> None:
        super().check_rows(settings, meta)
        if settings.words not in (None, *meta["columns"]):
            raise ConfigError(
                f"format.words: the rows have no column {settings.words}",
                f"set it to what they have: {', '.join(meta['columns'])}; data.format=conll reads a CoNLL file of any name",
            )
        if settings.words is None and len(meta["text"]) != 1:
            raise ConfigError(
                "format.task: token_classification reads words and tags, or one text with spans",
                "set format.words to the column of words, or data.text to the column of the text",
            )

    def labels_of(self, settings: Any, train: Callable[[], Iterable[Row]], nested: Iterable[str]) -> list[str]:
        if settings.labels:
            types = dict.fromkeys(
                type_of(tag, "format.labels") if settings.words or OUTSIDE in settings.labels else tag
                for tag in settings.labels
            )
        else:
            types = {}
            for number, row in enumerate(train(), 1):
                where = f"split train row {number}"
                value = value_of(row, settings.target, nested, where)
                if settings.words:
                    types |= dict.fromkeys(type_of(tag, where) for tag in tags_of(value, settings, where))
                else:
                    types |= dict.fromkeys(span[2] for span in spans_of(value, settings.target, where))
            types = dict.fromkeys(sorted(types))
        named = [name for name in types if name not in ("", OUTSIDE)]
        if not named:
            raise DataError(
                f"format.target: no row of train has a tag but {OUTSIDE} in {settings.target}",
                "give rows with entities, or name another column",
            )
        # both sides of a type, also where train has one: a test split may have the other
        return [OUTSIDE, *(f"{side}-{name}" for name in named for side in "BI")]

    def fixed(self, settings: Meta, labels: list[str] | None) -> Meta:
        wanted = labels if settings.get("words") else [name[2:] for name in (labels or ())[1::2]]
        return settings if settings.get("labels") else {**settings, "labels": wanted}

    def remarks_on_names(self, labels: Sequence[str]) -> Iterator[str]:
        yield from alike([label[2:] for label in labels[1::2]])

    def example_of(
        self, settings: Any, labels: list[str], nested: Iterable[str], texts: Callable[[Row, str], Row] | None
    ) -> Callable[[Row, str], Row | None]:
        ids = {name: number for number, name in enumerate(labels)}

        def example(row: Row, where: str) -> Row | None:
            value = value_of(row, settings.target, nested, where)
            if settings.words:
                whole, words = tagged(value_of(row, settings.words, nested, where), value, settings, where)
            else:
                assert texts is not None
                whole = texts(row, where)["text"]
                words = cut(whole, inside(whole, spans_of(value, settings.target, where, whole), where))
            for _, _, tag in words:
                if tag not in ids:
                    raise DataError(
                        f"{where}: the tag {tag!r} in {settings.target} is none of train's",
                        f"repair the row (the tags are {', '.join(labels[:12])}), or name all in format.labels",
                    )
            placed = [{"start": start, "end": end, "label": ids[tag]} for start, end, tag in words]
            return {"text": whole, "label": placed} if placed else None

        return example

    def first_outputs(self, means: Callable[[], Any], rows: int) -> Any:
        import numpy as np

        return np.log(means())

    def shown(self, target: Any, labels: list[str]) -> str:
        import numpy as np

        found = entities_in(np.asarray(target)[None]).tolist()
        named = (
            f"{labels[2 * kind + 1][2:]} {first + 1}" + f"-{last + 1}" * (last > first)
            for _, first, last, kind in found
        )
        return ", ".join(named) or "no entity"

    def outputs(self, logits: Tensor, targets: Tensor) -> Outputs:
        there = targets != IGNORED
        # by methods of tensors: the keys of the data stages hold this file, and no torch
        surprise = -logits.log_softmax(-1).gather(-1, targets.clamp(min=0).long()[..., None])[..., 0].double()
        loss = (surprise * there).sum(-1) / there.sum(-1).clamp(min=1)
        best = logits.softmax(-1).max(-1)
        decided = best.indices.int().where(there, IGNORED)
        return Outputs(*(column.cpu().numpy() for column in (targets, best.values, decided, loss)))

    def answer_in(
        self, text: str, places: Sequence[tuple[int, int] | None], values: Any, labels: list[str], settings: Meta
    ) -> Meta:
        words = written_in(text) if settings.get("words") else units_in(text)
        return {"entities": grouped(text, places, values, labels, words)}

    def line(self, answer: Meta) -> str:
        found = (f"{entity['type']}: {entity['text']} ({entity['score']:.2f})" for entity in answer["entities"])
        return ", ".join(found) or "no entity"

    def table(self, outputs: Outputs, labels: list[str]) -> list[Meta]:
        import numpy as np

        types = [name[2:] for name in labels[1::2]]
        counts = [np.bincount(some[:, 3], minlength=len(types)) for some in found_in(outputs)]
        columns = (*scores_of(*counts), counts[2])
        names = ("precision", "recall", "f1", "support")
        rows = [
            {name: column[at].item() for name, column in zip(names, columns, strict=True)} for at in range(len(types))
        ]
        return [{"label": name, **row} for name, row in zip(types, rows, strict=True)]

    def row_answers(self, outputs: Outputs, labels: list[str]) -> dict[str, list[Any]]:
        columns = {"label": outputs.expected, "predicted": outputs.decided}
        return {
            name: [[labels[tag] for tag in row if tag != IGNORED] for row in tags] for name, tags in columns.items()
        }

    def draw(self, outputs: Outputs, labels: list[str], folder: Path, plots: Any) -> None:
        rows = sorted(self.table(outputs, labels), key=lambda row: (-row["support"], row["label"]))
        names, values = [f"{row['label']} ({row['support']})" for row in rows], [row["f1"] for row in rows]
        plots.bars(names, values, "F1", "types (entities)", folder / "f1_of_types.png")
