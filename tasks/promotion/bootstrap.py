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
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.evaluation.scores import Matrices, RowSums, Score, promoting
from trnflow.tasks.promotion.freeze_rows import FROZEN_ROW
from trnflow.tasks.promotion.settings import PromoteConfig

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

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


def score_of(config: PromoteConfig, task: str) -> Score:
    """Return the metric by which models of a task are compared: `promote.metric`, else the task's default. Raises
    ConfigError when `promote.metric` is no metric of this task."""
    choices = promoting(task)
    chosen = [entry for entry in choices if config.metric in (None, entry.name)]
    if not chosen:
        raise ConfigError(
            f"promote.metric: {config.metric} is no metric of this task",
            f"choose one of {', '.join(entry.name for entry in choices)}",
        )
    return chosen[0]


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

    score = score_of(config, task)
    (first, sources), (second, others) = (_resampled(path, score) for path in (champion, challenger))
    (rows, drawn_first), (rows_of_second, drawn_second) = _clusters(sources), _clusters(others)
    if not np.array_equal(np.unique(sources), np.unique(others)):
        same = " other ones" if rows == rows_of_second else ""
        raise DataError(
            f"the champion has scores of {rows} frozen rows, the challenger of {rows_of_second}{same}: they can't be paired",
            "`trnflow freeze` the recipe again with rows that both models can read",
        )
    sign = -1.0 if score.less_is_better else 1.0
    draw = np.random.default_rng(config.seed)
    differences = np.empty(config.resamples)
    for number in range(config.resamples):
        drawn = draw.integers(0, rows, rows)
        differences[number] = sign * (second(drawn_second(drawn)) - first(drawn_first(drawn)))
    tail = (1.0 - config.confidence) / 2.0
    low, high = (float(value) for value in np.quantile(differences, [tail, 1.0 - tail]))
    values = first(slice(None)), second(slice(None))
    is_better = low > config.margin and rows >= LEAST_ROWS
    return Comparison(score.name, *values, sign * (values[1] - values[0]), low, high, rows, is_better)


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


def _resampled(scores: Path, score: Score) -> tuple[Resampled, Ints]:
    """Return a function that computes the metric of drawn examples, and the frozen row of each example. scores: a
    `scores.parquet`."""
    import pyarrow.parquet as pq

    table = pq.read_table(scores)
    sources = table.column(FROZEN_ROW).to_numpy()
    return (_of_classes if "label" in table.column_names else _of_sums)(table, score), sources


def _of_classes(table: pa.Table, score: Score) -> Resampled:
    import numpy as np

    from trnflow.tasks.evaluation.forward import Predictions

    labels, guesses = (table.column(name).to_pylist() for name in ("label", "predicted"))
    place = {name: number for number, name in enumerate(sorted({*labels, *guesses}))}
    expected, predicted = (np.array([place[name] for name in names], np.int64) for names in (labels, guesses))
    if score.of_matrices is not None:
        return _from_confusion(expected * len(place) + predicted, len(place), score.of_matrices)
    # frozen rows have no probabilities: no class has a column
    found = Predictions(expected, predicted, np.empty((len(expected), 0), np.float32), table.column("loss").to_numpy())
    return _of_rows(score, lambda rows: Predictions._make(column[rows] for column in found), found)


def _of_sums(table: pa.Table, score: Score) -> Resampled:
    nll, tokens, size = (table.column(name).to_numpy() for name in ("nll", "tokens", "bytes"))
    found = RowSums(nll, tokens, size, float(nll.sum()))
    return _of_rows(score, lambda rows: RowSums(nll[rows], tokens[rows], size[rows], float(nll[rows].sum())), found)


def _of_rows(score: Score, drawn: Callable[[Ints | slice], Any], found: Any) -> Resampled:
    """Return a function of drawn examples. drawn: makes the rows that the metric's function reads; found: all rows."""
    if score.ratio is not None:
        return _ratio(*score.ratio(found))

    def value(rows: Ints | slice) -> float:
        result = score(drawn(rows))
        return math.nan if result is None else result

    return value


def _ratio(over: Floats, under: Ints) -> Resampled:
    """Return a function that computes sum(over) / sum(under) of the drawn examples; `under` counts as at least 1."""
    return lambda rows: float(over[rows].sum() / max(int(under[rows].sum()), 1))


def _from_confusion(cells: Ints, classes: int, function: Callable[[Matrices], Floats]) -> Resampled:
    """Return a function of drawn examples. cells: true class * classes + predicted class of each example."""
    import numpy as np

    def value(rows: Ints | slice) -> float:
        counts = np.bincount(cells[rows], minlength=classes * classes).reshape(1, classes, classes)
        return float(function(Matrices(counts))[0])

    return value
