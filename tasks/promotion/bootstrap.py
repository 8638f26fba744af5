"""Compare two models on the same rows: a metric's difference, and its interval at the level of one judgement.

Accuracy: the exact sign test on the rows that the models judge differently. Other metrics: the paired bootstrap, which
draws frozen rows with replacement, the same for both models, each row with all its examples, until the decision is certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.evaluation.metrics.row_sums import RowSums
from trnflow.tasks.evaluation.scores import Matrices, Score, promoting
from trnflow.tasks.kinds.kind import Metric
from trnflow.tasks.kinds.preference import Rewards
from trnflow.tasks.kinds.targets import Outputs
from trnflow.tasks.kinds.unpaired_preference import MarkedRewards
from trnflow.tasks.promotion.freeze_rows import FROZEN_ROW
from trnflow.tasks.promotion.settings import PromoteConfig

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from trnflow.tasks.evaluation.columns import ClassPredictions

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

Measure = Callable[[int, Any], float]
"""(0 for the champion, 1 for the challenger; places of examples) -> a metric of these."""

DIFFERING = 0.06
"""The share of rows that two similar models are assumed to judge differently, to say which gain can win."""
POWER = 0.8
"""The chance with which that gain wins in one judgement."""
TAIL = 20
"""Resamples that are meant to lie beyond the interval's end: with fewer the end is too uncertain."""
EARLY = 8
"""A challenger wins at an EARLYth of the resamples if none is at or under the margin."""
BLOCK = 1 << 17
"""Drawn values that are held at once; bounds memory."""


class Comparison(NamedTuple):
    """The result of comparing a challenger with the champion.

    Attributes:
        difference: Positive when the challenger is better.
        low, high: Ends of the interval of the difference; chance alone passes either end with probability `alpha`.
        rows: Number of frozen rows.
        is_better: Whether `low` exceeds `promote.margin`, with enough rows judged differently (`least_rows`).
        differing: Number of rows that the models judge differently.
        spent: The share of the year's budget that is spent, this judgement included.
    """

    metric: str
    champion: float
    challenger: float
    difference: float
    low: float
    high: float
    rows: int
    is_better: bool
    differing: int
    alpha: float
    spent: float = 0.0

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


def least_rows(alpha: float) -> int:
    """Return how many rows must be judged differently before a challenger that wins all of them can win."""
    return math.ceil(-math.log2(alpha))


def sign_test(wins: int, differing: int, rows: int, alpha: float) -> tuple[float, float]:
    """Return the exact interval of the difference of accuracy. wins: of the differing rows, those that the challenger has
    right."""
    from scipy.stats import binomtest

    if not differing:
        return 0.0, 0.0
    ends = binomtest(wins, differing).proportion_ci(1.0 - 2.0 * alpha, "exact")
    low, high = (float(2.0 * end - 1.0) * differing / rows for end in ends)
    return low, high


def smallest_gain(rows: int, alpha: float, margin: float = 0.0) -> float | None:
    """Return the gain of accuracy that wins a judgement with probability POWER, None where no gain can win.

    The models are assumed to judge DIFFERING of the rows differently.
    """
    from scipy.special import betaincinv
    from scipy.stats import binom

    differing = round(rows * DIFFERING)
    least = (margin * rows / differing + 1.0) / 2.0 if differing else 1.0
    needed = int(binom.isf(alpha, differing, least)) + 1 if least < 1.0 else differing + 1
    if needed > differing:
        return None
    return float(2.0 * betaincinv(needed, differing - needed + 1, POWER) - 1.0) * differing / rows


def compare_scores(champion: Path, challenger: Path, task: str, config: PromoteConfig, alpha: float) -> Comparison:
    """Compare two models by their scores on the same frozen rows. champion, challenger: their `scores.parquet`; alpha: the
    probability with which chance may win.

    Raises:
        DataError: The files have examples of different rows.
        ConfigError: `promote.metric` is of another task.
    """
    import pyarrow.parquet as pq

    score = score_of(config, task)
    # two chat templates may make different numbers of examples of a row: each model is scored on its own
    sides = [pq.read_table(path).sort_by(FROZEN_ROW) for path in (champion, challenger)]
    rows = _paired(*(side.column(FROZEN_ROW).to_numpy() for side in sides))
    sign = -1.0 if score.less_is_better else 1.0
    pair = _pair(score, *sides)
    differing, values = int(pair.differs.sum()), pair.values
    if score.name == "accuracy":
        wins = (differing + round((values[1] - values[0]) * rows)) // 2
        low, high = sign_test(wins, differing, rows, alpha)
    else:
        low, high = bootstrap(pair.resample, pair.block, sign, config, alpha)
    return _compared(score.name, pair, sign, (low, high), rows, config, alpha)


def compare_own(
    name: str, metric: Measure, sides: Sequence[Any], sign: float, config: PromoteConfig, alpha: float
) -> Comparison:
    """Compare two models by a metric of the user's, as `compare_scores` does.

    Args:
        metric: (0 for the champion, 1 for the challenger; examples) -> value.
        sides: `Predictions` of both.
        sign: 1, or -1 where less is better.
    """
    import numpy as np

    rows = _paired(*(side.row for side in sides))
    named = [np.array(side.labels)[side.predicted] for side in sides if side.predicted is not None]
    differs = named[0] != named[1] if named else np.ones(rows, np.bool_)
    pair = _resampled(metric, [side.row for side in sides], differs)
    ends = bootstrap(pair.resample, pair.block, sign, config, alpha)
    return _compared(name, pair, sign, ends, rows, config, alpha)


def _paired(first: Ints, second: Ints) -> int:
    """Return the number of frozen rows of which both models have examples. Raises DataError if they are not the same."""
    import numpy as np

    first, second = np.unique(first), np.unique(second)
    if not np.array_equal(first, second):
        same = " other ones" if len(first) == len(second) else ""
        raise DataError(
            f"the champion has scores of {len(first)} frozen rows, the challenger of {len(second)}{same}: they can't be paired",
            "`trnflow freeze` the recipe again with rows that both models can read",
        )
    return len(first)


def _compared(
    name: str, pair: _Pair, sign: float, ends: tuple[float, float], rows: int, config: PromoteConfig, alpha: float
) -> Comparison:
    differing, values = int(pair.differs.sum()), pair.values
    is_better = ends[0] > config.margin and differing >= least_rows(alpha)
    return Comparison(name, *values, sign * (values[1] - values[0]), *ends, rows, is_better, differing, alpha)


def bootstrap(
    resample: Callable[[np.random.Generator, int], Floats], block: int, sign: float, config: PromoteConfig, alpha: float
) -> tuple[float, float]:
    """Return the interval of the difference, which exceeds the margin by chance with probability `alpha` at most.

    resample, block: of a `_Pair`; sign: 1, or -1 where less is better. Draws `promote.resamples` at least.
    """
    import numpy as np

    most = max(config.resamples, math.ceil(TAIL / alpha))
    # a twentieth of alpha pays for the early wins that all resamples would not confirm (docs/champions.md)
    beyond = math.floor(alpha * (1.0 - 1.0 / TAIL) * (most - 1)) + 1
    draw, blocks, count, low_ones = np.random.default_rng(config.seed), [], 0, 0
    while count < most:
        blocks.append(sign * resample(draw, min(block, most - count)))
        count, low_ones = count + len(blocks[-1]), low_ones + int((~(blocks[-1] > config.margin)).sum())
        # so many lie at or under the margin that the end of all resamples would, too; or none does
        if count >= config.resamples and (low_ones >= beyond or (not low_ones and count >= most / EARLY)):
            break
    differences = np.sort(np.concatenate(blocks))
    if count == most:
        return float(differences[beyond - 1]), float(differences[-beyond])
    # too few for the percentiles: the normal distribution's, on the side of the margin that was decided
    middle, reach = float(differences.mean()), NormalDist().inv_cdf(1.0 - alpha) * float(differences.std())
    low = min(middle - reach, config.margin) if low_ones else max(middle - reach, float(differences[0]))
    return low, middle + reach


class _Pair(NamedTuple):
    """Two models on the same rows.

    Attributes:
        values: The metric of the champion and of the challenger.
        differs: bool [rows]: which rows the two judge differently.
        resample: (generator, how many) -> the challenger's metric less the champion's, of as many resamples.
        block: How many resamples are drawn at once.
    """

    values: tuple[float, float]
    differs: NDArray[np.bool_]
    resample: Callable[[np.random.Generator, int], Floats]
    block: int


def _pair(score: Score, champion: pa.Table, challenger: pa.Table) -> _Pair:
    if score.of_matrices is not None:
        return _of_matrices(score.of_matrices, champion, challenger)
    if score.metric is not None:
        return _of_columns(score.metric, (champion, challenger))
    return (_of_sums if score.ratio is not None else _of_function)(score, (champion, challenger))


def _of_matrices(function: Callable[[Matrices], Floats], champion: pa.Table, challenger: pa.Table) -> _Pair:
    import numpy as np

    # a classifier has one example of each row
    texts = [champion.column("label"), champion.column("predicted"), challenger.column("predicted")]
    columns = np.array([column.to_pylist() for column in texts])
    names, numbers = np.unique(columns, return_inverse=True)
    classes, (label, first, second) = len(names), numbers.reshape(columns.shape)
    kinds, counts = np.unique(np.stack([label * classes + first, label * classes + second]), axis=1, return_counts=True)

    def metric(drawn: Ints, cells: Ints) -> Floats:
        # adds the kinds of rows that fall in the same cell
        order = np.argsort(cells, kind="stable")
        present, starts = np.unique(cells[order], return_index=True)
        matrices = np.zeros((len(drawn), classes * classes), np.int64)
        matrices[:, present] = np.add.reduceat(drawn[:, order], starts, axis=1)
        return function(Matrices(matrices.reshape(-1, classes, classes)))

    def resample(draw: np.random.Generator, size: int) -> Floats:
        # drawing from a multinomial distribution is the same as drawing rows with replacement
        drawn = draw.multinomial(len(label), counts / len(label), size)
        difference: Floats = metric(drawn, kinds[1]) - metric(drawn, kinds[0])
        return difference

    values = (float(metric(counts[None], kinds[0])[0]), float(metric(counts[None], kinds[1])[0]))
    return _Pair(values, first != second, resample, max(BLOCK // (len(counts) + classes * classes), 1))


def _of_sums(score: Score, tables: Sequence[pa.Table]) -> _Pair:
    import numpy as np

    assert score.ratio is not None
    # examples of one row, such as turns of a conversation, are not independent: their sums are drawn together
    rows = [np.unique(table.column(FROZEN_ROW).to_numpy(), return_inverse=True)[1] for table in tables]
    parts = [
        np.bincount(row, part)
        for table, row in zip(tables, rows, strict=True)
        for part in score.ratio(_examples(table))
    ]

    count, columns = len(parts[0]), np.stack(parts)

    def ratios(total: Floats) -> tuple[Floats, Floats]:
        return total[..., 0] / np.maximum(total[..., 1], 1), total[..., 2] / np.maximum(total[..., 3], 1)

    def resample(draw: np.random.Generator, size: int) -> Floats:
        drawn = draw.integers(0, count, (size, count), np.int32)
        # how often each row was drawn, times its parts: half the time that adding up the drawn rows takes
        places = drawn + count * np.arange(size)[:, None]
        times = np.bincount(places.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)
        first, second = ratios(np.einsum("sr,cr->sc", times, columns))  # without the threads of a matrix product
        return second - first

    first, second = ratios(columns.sum(axis=1))
    return _Pair((float(first), float(second)), parts[0] != parts[2], resample, max(BLOCK // count, 1))


def _of_columns(metric: Metric, tables: Sequence[pa.Table]) -> _Pair:
    """Resample a task's own metric, by sums over rows; a row has one example."""
    import numpy as np

    found = [_outputs(table) for table in tables]
    parts = [metric.columns(outputs) for outputs in found]
    count = len(parts[0])

    def resample(draw: np.random.Generator, size: int) -> Floats:
        times = draw.multinomial(count, np.full(count, 1 / count), size).astype(np.float64)
        first, second = (metric.of_sums(np.einsum("sr,rk->sk", times, part), count) for part in parts)
        difference: Floats = second - first
        return difference

    first, second = (float(metric.of_sums(part.sum(0), count)) for part in parts)
    differs = (found[0].decided != found[1].decided).any(1)
    return _Pair((first, second), differs, resample, max(BLOCK // count, 1))


def _outputs(table: pa.Table) -> Any:
    """Return `Outputs`, or of pairs of answers `Rewards` or `MarkedRewards`."""
    import numpy as np

    kinds = (Outputs, MarkedRewards, Rewards)
    kind = next(each for each in kinds if {*each._fields} <= {*table.column_names})
    return kind(*(np.array(table.column(name).to_pylist()) for name in kind._fields))


def _of_function(score: Score, tables: Sequence[pa.Table]) -> _Pair:
    """Resample a metric that is only a function: one call for each resample and model."""
    import numpy as np

    sides = [_examples(table) for table in tables]

    def metric(number: int, examples: Ints | slice) -> float:
        side = sides[number]
        columns: list[Any] = [column[examples] for column in side if isinstance(column, np.ndarray)]
        drawn: Any = (
            RowSums._make([*columns, columns[0].sum()]) if isinstance(side, RowSums) else type(side)._make(columns)
        )
        value = score(drawn)
        return math.nan if value is None else value

    sources = [table.column(FROZEN_ROW).to_numpy() for table in tables]
    named = [table.column("predicted").to_numpy() for table in tables if "predicted" in table.column_names]
    differs = named[0] != named[1] if named else np.ones(len(np.unique(sources[0])), np.bool_)
    return _resampled(metric, sources, differs)


def _resampled(metric: Measure, sources: Sequence[Ints], differs: NDArray[np.bool_]) -> _Pair:
    """Return the pair of a metric that is called for each resample. sources: each example's frozen row, of both models."""
    import numpy as np

    (rows, of_first), (_, of_second) = map(_clusters, sources)

    def resample(draw: np.random.Generator, size: int) -> Floats:
        drawn = draw.integers(0, rows, (size, rows))
        return np.array([metric(1, of_second(row)) - metric(0, of_first(row)) for row in drawn])

    values = metric(0, slice(None)), metric(1, slice(None))
    return _Pair(values, differs, resample, max(BLOCK // rows, 1))


def _examples(table: pa.Table) -> ClassPredictions | RowSums:
    """Return a model's scores as the metrics' functions read them."""
    import numpy as np

    from trnflow.tasks.evaluation.columns import ClassPredictions

    if "label" not in table.column_names:
        nll, tokens, size = (table.column(name).to_numpy() for name in ("nll", "tokens", "bytes"))
        return RowSums(nll, tokens, size, float(nll.sum()))
    names = np.array([table.column(name).to_pylist() for name in ("label", "predicted")])
    expected, predicted = np.unique(names, return_inverse=True)[1].reshape(names.shape)
    # frozen rows have no probabilities: no class has a column
    probabilities = np.empty((len(expected), 0), np.float32)
    return ClassPredictions(expected, predicted, probabilities, table.column("loss").to_numpy())


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
