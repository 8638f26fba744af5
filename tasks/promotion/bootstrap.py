"""Compare two models on the same rows: compute the difference of a metric, and the interval of the difference by the
paired bootstrap.

Each resample draws rows with replacement, the same rows for both models, and computes the difference of the metric. If
the interval of these differences lies above zero, the newer model is better, and not by chance. The same seed gives
the same interval.

The bootstrap draws frozen rows (fixed test rows), each with all examples (texts) that were made from the row. Examples
of one row, such as the turns of a conversation, are not independent, so they are not drawn one by one (a cluster
bootstrap).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.promotion.freeze_rows import FROZEN_ROW
from trnflow.tasks.promotion.settings import PromoteConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

METRICS = {
    "classification": ("f1_weighted", "f1_macro", "accuracy", "loss"),
    "causal_lm": ("bits_per_byte", "loss"),
}
"""The metrics of each task, the default first."""
LESS_IS_BETTER = ("loss", "bits_per_byte")

Resampled = Callable[["Ints | slice"], float]
"""Computes a model's metric on some examples: their numbers, repeated as often as they were drawn."""


class Comparison(NamedTuple):
    """The result of comparing a challenger (a new model) with the champion (the model that the recipe's users get).

    metric: the metric's name; champion, challenger: the metric of each model on all rows; difference: between the two,
    positive when the challenger is better; low, high: ends of the two-sided bootstrap interval of the difference; rows:
    the number of frozen rows (fixed test rows) compared; is_better: whether `low` exceeds `promote.margin` and there
    are at least 30 rows."""

    metric: str
    champion: float
    challenger: float
    difference: float
    low: float
    high: float
    rows: int
    is_better: bool

    def to_json(self) -> Meta:
        return self._asdict()


def metric_of(config: PromoteConfig, task: str) -> str:
    """Return the name of the metric by which models of a task are compared: `promote.metric`, by default f1_weighted
    for `classification` and bits_per_byte for `causal_lm`. ConfigError when `promote.metric` is no metric of this
    task."""
    metrics = METRICS[task]
    if config.metric is not None and config.metric not in metrics:
        raise ConfigError(
            f"promote.metric: {config.metric} is no metric of this task", f"choose one of {', '.join(metrics)}"
        )
    return config.metric or metrics[0]


LEAST_ROWS = 30
"""With fewer rows the interval is too narrow, and noise wins more often than promised: no model is surely better."""


def compare(champion: Path, challenger: Path, task: str, config: PromoteConfig) -> Comparison:
    """Compare two models by their scores on the same frozen rows (fixed test rows): the difference of a metric and its
    bootstrap interval.

    champion, challenger: the `scores.parquet` that the stage `score_rows` wrote for the present model and for the new
    one; task: `classification` or `causal_lm`;
    config: the recipe's section `promote` (metric, resamples, seed, confidence, margin).

    The models may have made different numbers of examples of a row, as two chat templates do: rows are drawn, and each model
    is scored on its own examples of them.

    Raises:
        DataError: the files have examples of different rows.
        ConfigError: `promote.metric` is of another task.
    """
    import numpy as np

    metric = metric_of(config, task)
    (first, sources), (second, others) = (_resampled(path, metric) for path in (champion, challenger))
    (rows, drawn_first), (rows_of_second, drawn_second) = _clusters(sources), _clusters(others)
    if not np.array_equal(np.unique(sources), np.unique(others)):
        same = " other ones" if rows == rows_of_second else ""
        raise DataError(
            f"the champion has scores of {rows} frozen rows, the challenger of {rows_of_second}{same}: they can't be paired",
            "`trnflow freeze` the recipe again with rows that both models can read",
        )
    sign = -1.0 if metric in LESS_IS_BETTER else 1.0
    draw = np.random.default_rng(config.seed)
    differences = np.empty(config.resamples)
    for number in range(config.resamples):
        drawn = draw.integers(0, rows, rows)
        differences[number] = sign * (second(drawn_second(drawn)) - first(drawn_first(drawn)))
    tail = (1.0 - config.confidence) / 2.0
    low, high = (float(value) for value in np.quantile(differences, [tail, 1.0 - tail]))
    values = first(slice(None)), second(slice(None))
    is_better = low > config.margin and rows >= LEAST_ROWS
    return Comparison(metric, *values, sign * (values[1] - values[0]), low, high, rows, is_better)


def _clusters(sources: Ints) -> tuple[int, Callable[[Ints], Ints]]:
    """(number of rows that have examples, a function from the numbers of drawn rows to those of all their examples).

    sources: the row of each example."""
    import numpy as np

    sizes = np.unique(sources, return_counts=True)[1]
    order, ends = np.argsort(sources, kind="stable"), np.cumsum(sizes)

    def examples_of(drawn: Ints) -> Ints:
        count = sizes[drawn]
        before = np.cumsum(count) - count
        found: Ints = order[np.arange(count.sum()) + np.repeat((ends - sizes)[drawn] - before, count)]
        return found

    return len(sizes), examples_of


def _resampled(scores: Path, metric: str) -> tuple[Resampled, Ints]:
    """Return a function that computes the metric of drawn examples, and the frozen row of each example. scores: a
    `scores.parquet`."""
    import pyarrow.parquet as pq

    table = pq.read_table(scores)
    sources = table.column(FROZEN_ROW).to_numpy()
    columns = {name: table.column(name).to_numpy() for name in table.column_names if name not in ("label", "predicted")}
    if metric in ("accuracy", "f1_macro", "f1_weighted"):
        names = sorted({*table.column("label").to_pylist(), *table.column("predicted").to_pylist()})
        place = {name: number for number, name in enumerate(names)}
        pairs = zip(table.column("label").to_pylist(), table.column("predicted").to_pylist(), strict=True)
        return _from_confusion([place[a] * len(names) + place[b] for a, b in pairs], len(names), metric), sources
    if metric == "bits_per_byte":
        return _ratio(columns["nll"] / math.log(2), columns["bytes"]), sources
    if "nll" in columns:
        return _ratio(columns["nll"], columns["tokens"]), sources
    return (lambda rows: float(columns["loss"][rows].mean())), sources


def _ratio(over: Floats, under: Ints) -> Resampled:
    """Return a function that computes sum(over) / sum(under) of the drawn examples; `under` counts as at least 1."""
    return lambda rows: float(over[rows].sum() / max(int(under[rows].sum()), 1))


def _from_confusion(pairs: list[int], classes: int, metric: str) -> Resampled:
    """Return a function that computes a classification metric of the drawn examples. pairs: (true class * classes +
    predicted class) of each example; classes: the number of classes."""
    import numpy as np

    cells = np.array(pairs, np.int64)

    def value(rows: Ints | slice) -> float:
        confusion = np.bincount(cells[rows], minlength=classes * classes).reshape(classes, classes)
        return _classification(confusion, metric)

    return value


def _classification(confusion: Ints, metric: str) -> float:
    """The metric of a confusion matrix [true, predicted]; as scikit-learn with `zero_division=0`. Classes that neither occur
    nor are predicted do not count for f1_macro."""
    import numpy as np

    hits, support, guessed = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    if metric == "accuracy":
        return float(hits.sum() / support.sum())
    both = support + guessed
    f1 = np.divide(2 * hits, both, out=np.zeros(len(hits)), where=both > 0)
    if metric == "f1_macro":
        return float(f1[both > 0].mean())
    return float((f1 * support).sum() / support.sum())
