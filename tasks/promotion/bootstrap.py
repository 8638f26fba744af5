"""Compare two models on the same rows: the difference of a metric, and its interval by the paired bootstrap.

Each resample draws frozen rows with replacement, the same for both models, each row with all its examples.
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
    """The result of comparing a challenger with the champion.

    Attributes:
        difference: Positive when the challenger is better.
        low, high: Ends of the two-sided bootstrap interval of the difference.
        rows: Number of frozen rows.
        is_better: Whether `low` exceeds `promote.margin`, with at least LEAST_ROWS.
    """

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
    """Return the metric by which models of a task are compared. Raises ConfigError."""
    choices = promoting(task)
    chosen = [entry for entry in choices if config.metric in (None, entry.name)]
    if not chosen:
        raise ConfigError(
            f"promote.metric: {config.metric} is no metric of this task",
            f"choose one of {', '.join(entry.name for entry in choices)}",
        )
    return chosen[0]


# with fewer rows the interval is too narrow, and noise wins more often than promised: no model is surely better
LEAST_ROWS = 30


def compare_scores(champion: Path, challenger: Path, task: str, config: PromoteConfig) -> Comparison:
    """Compare two models by their scores on the same frozen rows. champion, challenger: their `scores.parquet`.

    Raises:
        DataError: The files have examples of different rows.
        ConfigError: `promote.metric` is of another task.
    """
    import numpy as np

    score = score_of(config, task)
    (first, sources), (second, others) = (_resampled(path, score) for path in (champion, challenger))
    # two chat templates may make different numbers of examples of a row: each model is scored on its own
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
    """Return (number of rows with examples, a function from drawn rows to all their examples)."""
    import numpy as np

    # examples of one row, such as turns of a conversation, are not independent: a cluster bootstrap
    sizes = np.unique(sources, return_counts=True)[1]
    order, ends = np.argsort(sources, kind="stable"), np.cumsum(sizes)

    def examples_of(drawn: Ints) -> Ints:
        count = sizes[drawn]
        before = np.cumsum(count) - count
        found: Ints = order[np.arange(count.sum()) + np.repeat((ends - sizes)[drawn] - before, count)]
        return found

    return len(sizes), examples_of


def _resampled(scores: Path, score: Score) -> tuple[Resampled, Ints]:
    """Return a function that computes the metric of drawn examples, and the frozen row of each example."""
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
    """Return a function of drawn examples. drawn: makes the rows that the metric's function reads."""
    if score.ratio is not None:
        over, under = score.ratio(found)
        return lambda rows: float(over[rows].sum() / max(int(under[rows].sum()), 1))

    def value(rows: Ints | slice) -> float:
        result = score(drawn(rows))
        return math.nan if result is None else result

    return value


def _from_confusion(cells: Ints, classes: int, function: Callable[[Matrices], Floats]) -> Resampled:
    """Return a function of drawn examples. cells: true class * classes + predicted class of each example."""
    import numpy as np

    def value(rows: Ints | slice) -> float:
        counts = np.bincount(cells[rows], minlength=classes * classes).reshape(1, classes, classes)
        return float(function(Matrices(counts))[0])

    return value
