"""The task `regression`: one or several numbers a row, learnt by the mean squared error.

The model predicts the numbers themselves: nothing is scaled, so that transformers opens the model as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.kind import Metric, Row
from trnflow.tasks.kinds.targets import Outputs, TargetKind, loss_metric, value_of

if TYPE_CHECKING:
    from torch import Tensor

FEWEST_COMPARED = 30
"""Rows of two splits from which on their numbers are compared."""
OTHER_SCALE = 4.0
"""How many times as far as another split's a split's quartiles lie apart, at least, if it may be on another scale."""
STANDS_FOR_NONE, FEWEST, FAR = re.compile("-?99+"), 3, 10.0
"""How numbers are written that stand for a missing one, such as -999; rows with it, at least, that are remarked; and how many
times as far from the quartiles as these are from each other."""
CLOSE = 1e-3
"""The difference of two models' numbers that counts as the same, of numbers above one as a share."""


def _errors(outputs: Outputs) -> Any:
    return outputs.values.astype("float64") - outputs.expected


def moments(expected: Any, values: Any) -> Any:
    """Return the columns x, y, xx, yy, xy of each output, about the means of these rows: float64 [rows, 5 x outputs]."""
    import numpy as np

    x, y = (column.astype(np.float64) - column.mean(0, dtype=np.float64) for column in (expected, values))
    return np.concatenate([x, y, x * x, y * y, x * y], axis=1)


def ranks_of(values: Any) -> Any:
    """Return the ranks in each column, of equal values their mean, as scipy's `rankdata`."""
    import numpy as np

    ranks = np.empty(values.shape, np.float64)
    for at, column in enumerate(values.T):
        _, places, counts = np.unique(column, return_inverse=True, return_counts=True)
        ranks[:, at] = (counts.cumsum() - (counts - 1) / 2)[places]
    return ranks


def correlation(sums: Any, rows: Any) -> Any:
    """Return Pearson's correlation, the mean over outputs, 0 for one whose numbers are all equal.

    sums: of x, y, x², y² and xy over the rows, [..., 5 x outputs].
    """
    import numpy as np

    x, y, xx, yy, xy = np.moveaxis(sums.reshape(*sums.shape[:-1], 5, -1), -2, 0)
    below = np.sqrt(np.maximum(xx - x * x / rows, 0) * np.maximum(yy - y * y / rows, 0))
    return np.divide(xy - x * y / rows, below, out=np.zeros(below.shape), where=below > 0).mean(-1)


class Regression(TargetKind):
    name = "regression"
    problem_type = "regression"
    looks_at_targets = True
    metrics = (
        Metric(
            "mae", lambda outputs: abs(_errors(outputs)).mean(1)[:, None], lambda sums, rows: sums[..., 0] / rows,
            less_is_better=True, hub="mae", may_promote=True,
        ),
        Metric(
            "rmse", lambda outputs: (_errors(outputs) ** 2).mean(1)[:, None], lambda sums, rows: (sums[..., 0] / rows) ** 0.5,
            less_is_better=True, hub="rmse", may_promote=True, is_default=True,
        ),
        Metric(
            "pearson", lambda outputs: moments(outputs.expected, outputs.values), correlation, hub="pearsonr",
            may_promote=True,
        ),
        # of resampled rows, too, these are the ranks among all rows
        Metric(
            "spearman", lambda outputs: moments(ranks_of(outputs.expected), ranks_of(outputs.values)), correlation,
            hub="spearmanr", may_promote=True,
        ),
        loss_metric(),
    )  # fmt: skip
    plots = {"residuals.png": "predictions and residuals by the true number"}
    answers = {"text": "string", "scores": "map"}

    def check_settings(self, settings: Any) -> None:
        if settings.labels:
            raise ValueError("`labels` is for multi_label: regression is named by the columns in `target`")
        if not settings.targets or len({*settings.targets}) < len(settings.targets):
            raise ValueError("`target` needs one column or more, each once")

    def foreseen(self, settings: Any) -> list[str]:
        return [*settings.targets]

    def labels_of(self, settings: Any, train: Callable[[], Iterable[Row]], nested: Iterable[str]) -> list[str]:
        targets, first = self.target_of(settings, [], nested), None
        for number, row in enumerate(train(), 1):
            numbers = targets(row, f"split train row {number}")
            if first not in (None, numbers):
                return [*settings.targets]
            first = numbers
        if first is None:  # rows that are only scored
            return [*settings.targets]
        raise DataError(
            f"format.target: all rows of train have the same {' and '.join(settings.targets)}, {first}",
            "give rows of other numbers, or name another column",
        )

    def target_of(self, settings: Any, labels: list[str], nested: Iterable[str]) -> Callable[[Row, str], Any]:
        columns = settings.targets
        return lambda row, where: [number_in(value_of(row, name, nested, where), name, where) for name in columns]

    def remarks(self, targets: Any, train: Any) -> Iterator[str]:
        import numpy as np

        for number, rows in (found for column in targets.T for found in _standing_for_none(column)):
            yield f"{rows} of {len(targets)} rows have {number}, far from all others: if it stands for none, leave these rows out"
        if train is None or min(len(targets), len(train)) < FEWEST_COMPARED:
            return
        quartiles = [np.quantile(numbers.astype(np.float64), (0.25, 0.75), axis=0).T for numbers in (targets, train)]
        for (low, high), (least, most) in zip(*quartiles, strict=True):
            sizes = sorted((high - low, most - least))
            if sizes[0] > 0 and (sizes[1] > OTHER_SCALE * sizes[0] or max(least - high, low - most) > sizes[1]):
                yield (
                    f"half of its numbers lie from {low:.4g} to {high:.4g}, those of train from {least:.4g} to {most:.4g}: are "
                    "they on one scale?"
                )

    def first_outputs(self, means: Callable[[], Any], rows: int) -> Any:
        return means()

    def first_spread(self, deviations: Callable[[], Any]) -> Any:
        found = deviations()
        return found + (found == 0)  # of a number that is the same in all rows the weights stay

    def shown(self, target: Any, labels: list[str]) -> str:
        return "  ".join(f"{name} {value:.4g}" for name, value in zip(labels, target, strict=True))

    def each_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return (logits - targets) ** 2

    def values_of(self, logits: Tensor) -> Tensor:
        return logits

    def agree(self, first: Tensor, second: Tensor) -> Tensor:
        return ((first - second).abs() <= CLOSE * second.abs().clamp(min=1)).all(-1)

    def line(self, answer: Meta) -> str:
        return self.shown(answer["scores"].values(), [*answer["scores"]])

    def table(self, outputs: Outputs, labels: list[str]) -> list[Meta]:
        rows = []
        for at, label in enumerate(labels):
            alone = Outputs(outputs.expected[:, [at]], outputs.values[:, [at]], outputs.decided[:, [at]], outputs.loss)
            values = {m.name: m.of_sums(m.columns(alone).sum(0), len(outputs.loss)) for m in self.metrics[:-1]}
            rows.append({"label": label, **{name: float(value) for name, value in values.items()}})
        return rows

    def row_answers(self, outputs: Outputs, labels: list[str]) -> dict[str, list[Any]]:
        return {"label": [*outputs.expected], "predicted": [*outputs.values]}

    def draw(self, outputs: Outputs, labels: list[str], folder: Path, plots: Any) -> None:
        plots.residuals(outputs.expected, outputs.values, labels, folder / "residuals.png")


def _standing_for_none(column: Any) -> Iterator[tuple[str, int]]:
    """Yield (number, rows) of numbers that look like a mark of a missing one. column: float32 [rows]."""
    import numpy as np

    low, high = np.quantile(column.astype(np.float64), (0.25, 0.75))
    for number, rows in zip(*np.unique(column, return_counts=True), strict=True):
        written = f"{number:.10g}"
        is_far = max(low - number, number - high) > FAR * (high - low) > 0
        if rows >= FEWEST and is_far and STANDS_FOR_NONE.fullmatch(written):
            yield written, int(rows)


def number_in(value: Any, column: str, where: str, setting: str = "format.target") -> float:
    """Return a cell's number. Raises DataError for what is none, or not finite."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        what = "missing" if value is None or value == "" else f"{value!r}, no finite number"
        raise DataError(f"{where}: {column} is {what}", f"repair or drop the row, or name another column in {setting}")
    return number
