"""The task `multi_label`: any number of labels a row, each yes or no by itself.

Rows have a list of labels, or a column of 0 and 1 for each. A label is predicted where its probability reaches the
threshold, one for all labels, that gives the best micro F1 on validation.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.kind import Metric, Row
from trnflow.tasks.kinds.label_names import alike, made_of_others
from trnflow.tasks.kinds.targets import Outputs, TargetKind, loss_metric, value_of
from trnflow.tasks.kinds.written_lists import bare, written_list

if TYPE_CHECKING:
    from torch import Tensor

MOST_LABELS = 10_000
THRESHOLD = "threshold"
BITS = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0, "0.0": 0.0, "1.0": 1.0}
ZERO_OR_ONE = ("0", "1", "0.0", "1.0", "0.", "1.")
BETWEEN = (",", ";", "|")
"""What stands between the labels of a cell: the first of these that the column's cells have."""


def _counts(expected: Any, decided: Any) -> Any:
    """Return right, missed and wrong predictions of each row and label: float64 [rows, 3 x labels]."""
    import numpy as np

    true, said = expected > 0.5, decided > 0.5
    return np.concatenate([true & said, true & ~said, ~true & said], axis=1).astype(np.float64)


def _of_row(outputs: Outputs) -> Any:
    return _counts(outputs.expected, outputs.decided)


def _of_row_at_half(outputs: Outputs) -> Any:
    return _counts(outputs.expected, outputs.values >= 0.5)


def _f1(right: Any, missed: Any, wrong: Any) -> Any:
    """Return F1, 0 where nothing is true or predicted."""
    import numpy as np

    below = 2 * right + missed + wrong
    return np.divide(2 * right, below, out=np.zeros(np.shape(below)), where=np.asarray(below) > 0)


def _micro(sums: Any, rows: Any) -> Any:
    return _f1(*sums.reshape(*sums.shape[:-1], 3, -1).sum(-1).T).T


def _macro(sums: Any, rows: Any) -> Any:
    return _f1(*(sums.reshape(*sums.shape[:-1], 3, -1)[..., part, :] for part in range(3))).mean(-1)


def _exact(outputs: Outputs) -> Any:
    return ((outputs.expected > 0.5) == (outputs.decided > 0.5)).all(1)[:, None].astype(float)


def labels_in(value: Any, between: str) -> list[str]:
    """Return the labels of a cell: of a list its elements, of a text what stands between `between`."""
    if isinstance(value, str) and (elements := written_list(value)) is not None:
        value = elements
    if isinstance(value, str):
        parts = [part.strip() for part in bare(value).split(between)]
        return [part for part in parts if part and part.lower() != "nan"]
    parts = [str(part) for part in (value if isinstance(value, list) else [value]) if part is not None]
    return [part for part in parts if part.strip()]


def _refuse_bits(cells: Iterable[Any], column: str) -> None:
    """Raise DataError if each cell of train is a list with a 0 or 1 for each label: read as names, it has the labels 0 and 1."""
    size, first = 0, 0
    for number, cell in enumerate(cells, 1):
        some = written_list(cell) if isinstance(cell, str) else cell
        if some is None:
            continue
        first = first or number
        size = size or (len(some) if isinstance(some, list) else 0)
        if (
            size < 2
            or not isinstance(some, list)
            or len(some) != size
            or any(str(bit) not in ZERO_OR_ONE for bit in some)
        ):
            return
    if size:
        raise DataError(
            f"split train row {first}: {column} is a list of {size} numbers, each 0 or 1, as in every row; read as names of "
            "labels, all rows have the labels 0 and 1",
            "write the names of a row's labels, or a column of 0 and 1 for each label, and name these columns in format.target",
        )


def _known(value: Any, ids: Container[str]) -> list[str]:
    """Return the labels of a cell whose names are known: it may be one of them, whatever it holds."""
    if isinstance(value, str) and value.strip() in ids:
        return [value.strip()]
    ways = [labels_in(value, between) for between in BETWEEN]
    return next((labels for labels in ways if all(label in ids for label in labels)), max(ways, key=len))


RARE = "f1_macro"
"""The metric in which a rare label counts as much as a frequent one."""


class MultiLabel(TargetKind):
    name = "multi_label"
    opener = 'transformers.pipeline("text-classification", model=FOLDER, top_k=None, truncation=True)'
    problem_type = "multi_label_classification"
    decides = True
    takes_made_rows = True
    metrics = (
        Metric("f1_micro", _of_row, _micro, hub="f1", may_promote=True, is_default=True),
        Metric(RARE, _of_row, _macro, hub="f1", may_promote=True),
        Metric("accuracy", _exact, lambda sums, rows: sums[..., 0] / rows, hub="accuracy", may_promote=True),
        loss_metric(),
        Metric("f1_micro_at_half", _of_row_at_half, _micro),
        Metric("f1_macro_at_half", _of_row_at_half, _macro),
    )
    plots = {"f1_of_labels.png": "F1 of each label"}
    answers = {"text": "string", "labels": "list", "probabilities": "map"}

    def check_settings(self, settings: Any) -> None:
        if settings.labels and not isinstance(settings.target, str):
            raise ValueError(
                "`labels` names the labels of one column of lists; several columns in `target` are the labels"
            )
        names = settings.labels or (settings.targets if not isinstance(settings.target, str) else ("a", "b"))
        if len(names) < 2 or len({*names}) < len(names):
            raise ValueError("multi_label needs two labels or more, each once")

    def labels_of(self, settings: Any, train: Callable[[], Iterable[Row]], nested: Iterable[str]) -> list[str]:
        if not isinstance(settings.target, str):
            return [*settings.target]
        if settings.labels:
            return [*settings.labels]
        seen: dict[str, None] = {}
        between = self._between(settings, train, nested)
        _refuse_bits((value_of(row, settings.target, nested, "split train") for row in train()), settings.target)
        number, first, differ = 0, None, False
        for number, row in enumerate(train(), 1):
            where = f"split train row {number}"
            labels = labels_in(value_of(row, settings.target, nested, where), between)
            seen |= dict.fromkeys(labels)
            differ |= first not in (None, {*labels})
            first = {*labels}
            if len(seen) > MOST_LABELS:
                raise DataError(f"{where}: more than {MOST_LABELS} labels", "name a column of labels in format.target")
        if len(seen) < 2:
            raise DataError(
                f"format.target: the rows of train have {len(seen)} labels in {settings.target}",
                "give rows of two labels or more, or name another column",
            )
        if not differ and number > 1:
            raise DataError(
                f"format.target: all rows of train have the same labels in {settings.target}, {', '.join([*seen][:12])}",
                "give rows of other labels, or name another column",
            )
        return sorted(seen, key=(lambda text: (int(text), text)) if all(map(str.isdecimal, seen)) else None)

    def _between(self, settings: Any, train: Callable[[], Iterable[Row]], nested: Iterable[str]) -> str:
        cells = (value_of(row, settings.target, nested, "split train") for row in train())
        found = {
            sign
            for cell in cells
            if isinstance(cell, str) and written_list(cell) is None
            for sign in BETWEEN
            if sign in bare(cell)
        }
        return next((sign for sign in BETWEEN if sign in found), BETWEEN[0])

    def fixed(self, settings: Meta, labels: list[str] | None) -> Meta:
        return {**settings, "labels": labels} if isinstance(settings["target"], str) else settings

    def target_of(self, settings: Any, labels: list[str], nested: Iterable[str]) -> Callable[[Row, str], Any]:
        if not isinstance(settings.target, str):
            return lambda row, where: [
                _bit(value_of(row, name, nested, where), name, where) for name in settings.target
            ]
        ids = {name: number for number, name in enumerate(labels)}
        if not any(map(str.isdecimal, labels)):  # rows may give numbers
            ids |= {str(number): number for number in range(len(labels))}

        def target(row: Row, where: str) -> list[float]:
            bits = [0.0] * len(labels)
            for label in _known(value_of(row, settings.target, nested, where), ids):
                if label not in ids:
                    near = difflib.get_close_matches(label, labels, n=1)
                    known = f"did you mean {near[0]}?" if near else f"the labels are {', '.join(labels[:12])}"
                    raise DataError(
                        f"{where}: the label {label!r} in {settings.target} is none of train's",
                        f"repair the row ({known}), or name all labels in format.labels",
                    )
                bits[ids[label]] = 1.0
            return bits

        return target

    def remarks_on_names(self, labels: Sequence[str]) -> Iterator[str]:
        yield from alike(labels)
        yield from made_of_others(labels)

    def first_outputs(self, means: Callable[[], Any], rows: int) -> Any:
        import numpy as np

        hits = means() * rows
        return np.log((hits + 0.5) / (rows - hits + 0.5))  # finite, too, for a label that no row has

    def shown(self, target: Any, labels: list[str]) -> str:
        return ", ".join(label for label, bit in zip(labels, target, strict=True) if bit) or "no label"

    def each_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        # torch's binary_cross_entropy_with_logits, without torch in the keys of the data stages
        return logits.clamp(min=0) - logits * targets + (-logits.abs()).exp().log1p()

    def values_of(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def agree(self, first: Tensor, second: Tensor) -> Tensor:
        return ((first > 0) == (second > 0)).all(-1)

    def decide(self, outputs: Outputs) -> Meta:
        """Return the threshold, in hundredths, of the best micro F1; of equal ones the nearest to 0.5."""
        thresholds = sorted((number / 100 for number in range(1, 100)), key=lambda value: abs(value - 0.5))
        scores = [float(_micro(_counts(outputs.expected, outputs.values >= at).sum(0), 1)) for at in thresholds]
        return {THRESHOLD: thresholds[max(range(len(scores)), key=scores.__getitem__)]}

    def said_of(self, decision: Meta) -> str:
        least = decision.get(THRESHOLD, 0.5)
        why = ", which was chosen on validation rows; other programs take 0.5" if THRESHOLD in decision else ""
        return f"A text has each label with a score of at least {least}{why}."

    def decided(self, values: Any, decision: Meta) -> Any:
        return (values >= decision.get(THRESHOLD, 0.5)).astype("float32")

    def answer(self, values: list[float], labels: list[str], decision: Meta) -> Meta:
        least = decision.get(THRESHOLD, 0.5)
        said = [label for label, value in zip(labels, values, strict=True) if value >= least]
        return {"labels": said, "probabilities": dict(zip(labels, values, strict=True))}

    def line(self, answer: Meta) -> str:
        return ", ".join(f"{label} {answer['probabilities'][label]:.3f}" for label in answer["labels"]) or "no label"

    def table(self, outputs: Outputs, labels: list[str]) -> list[Meta]:
        right, missed, wrong = _of_row(outputs).sum(0).reshape(3, -1)
        f1 = _f1(right, missed, wrong)
        return [
            {
                "label": label,
                "precision": float(right[at] / max(right[at] + wrong[at], 1)),
                "recall": float(right[at] / max(right[at] + missed[at], 1)),
                "f1": float(f1[at]),
                "support": int(right[at] + missed[at]),
            }
            for at, label in enumerate(labels)
        ]

    def row_answers(self, outputs: Outputs, labels: list[str]) -> dict[str, list[Any]]:
        def named(bits: Any) -> list[list[str]]:
            return [[labels[at] for at in row.nonzero()[0]] for row in bits > 0.5]

        return {
            "label": named(outputs.expected),
            "predicted": named(outputs.decided),
            "probabilities": [*outputs.values],
        }

    def draw(self, outputs: Outputs, labels: list[str], folder: Path, plots: Any) -> None:
        rows = sorted(self.table(outputs, labels), key=lambda row: (row["f1"], row["label"]))
        names, values = [f"{row['label']} ({row['support']})" for row in rows], [row["f1"] for row in rows]
        plots.bars(names, values, "F1", "labels (rows that have them)", folder / "f1_of_labels.png")


def _bit(value: Any, column: str, where: str) -> float:
    bit = BITS.get(str(float(value) if isinstance(value, float) else value).strip().lower())
    if bit is None:
        raise DataError(
            f"{where}: {column} is {value!r}, not 0 or 1", "repair the row, or name other columns in format.target"
        )
    return bit
