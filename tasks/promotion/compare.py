"""Compare two models on the same rows: a metric's difference, and its interval at the level of one judgement.

Accuracy: the exact sign test on the rows that one of the two models has right. Other metrics: the permutation test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.evaluation.metrics.row_sums import RowSums
from trnflow.tasks.evaluation.paired import Pair, pair_of_sums
from trnflow.tasks.evaluation.scores import Score, promoting
from trnflow.tasks.kinds.preference import Rewards
from trnflow.tasks.kinds.targets import Outputs, stacked
from trnflow.tasks.kinds.unpaired_preference import MarkedRewards
from trnflow.tasks.promotion.freeze_rows import FROZEN_ROW
from trnflow.tasks.promotion.permutations import (
    Measure,
    can_win,
    pair_of_function,
    pair_of_matrices,
    permutation_interval,
)
from trnflow.tasks.promotion.settings import PromoteConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from trnflow.tasks.evaluation.columns import ClassPredictions
    from trnflow.tasks.system.arrays import Ints

DIFFERING = 0.06
"""The share of rows that two equally good models are assumed to judge differently, to say which gain can win."""
POWER = 0.8
"""The chance with which that gain wins in one judgement."""


class Comparison(NamedTuple):
    """The result of comparing a challenger with the champion.

    Attributes:
        difference: Positive when the challenger is better.
        low, high: Ends of the interval of the difference; chance alone passes either end with probability `alpha`.
        rows: Number of frozen rows.
        is_better: Whether `low` exceeds `promote.margin`.
        differing: Number of rows that count differently for the two models.
        alpha: The look's share of the year's budget; 0 if nothing is left.
        spent: The part of the year's budget that is spent, this look included.
        can_win: Whether the challenger could have won by its share of the rows that differ: else the look is not counted.
        look: The look's number among the counted ones of 365 days; 0 if it is not counted.
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
    can_win: bool = True
    look: int = 0

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


def sign_test(wins: int, differing: int, rows: int, alpha: float) -> tuple[float, float]:
    """Return the exact interval of the difference of accuracy.

    differing: rows that one of the two has right; wins: of these, those that the challenger has right.
    """
    from scipy.stats import binomtest

    if not differing:
        return 0.0, 0.0
    ends = binomtest(wins, differing).proportion_ci(1.0 - 2.0 * alpha, "exact")
    low, high = (float(2.0 * end - 1.0) * differing / rows for end in ends)
    return low, high


def smallest_gain(rows: int, alpha: float, margin: float = 0.0) -> float | None:
    """Return the gain of accuracy that wins a judgement with probability POWER, None where no gain can win.

    The models are assumed to judge DIFFERING of the rows differently, and as many more as the gain.
    """
    import numpy as np
    from scipy.stats import binom

    differing = np.arange(max(math.ceil(rows * DIFFERING), 1), rows + 1)
    gains = differing / rows - DIFFERING
    least = (margin * rows / differing + 1.0) / 2.0
    needed = binom.isf(alpha, differing, np.minimum(least, 1.0)) + 1
    power = binom.sf(needed - 1, differing, (1.0 + np.minimum(gains * rows / differing, 1.0)) / 2.0)
    winning = gains[(power >= POWER) & (least < 1.0) & (needed <= differing)]
    return float(winning[0]) if len(winning) else None


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
    pair = _pair(score, sides)
    if score.name == "accuracy" and score.of_matrices:
        return _by_signs(pair, sides, config, alpha)
    sign = -1.0 if score.less_is_better else 1.0
    return _by_permutations(score.name, pair, sign, rows, config, alpha)


def compare_own(
    name: str, metric: Measure, sides: Sequence[Any], sign: float, config: PromoteConfig, alpha: float
) -> Comparison:
    """Compare two models by a metric of the user's, as `compare_scores` does.

    metric: places in the examples of both, the champion's first -> value; sides: `Predictions` of both, with the same labels;
    sign: 1, or -1 where less is better.
    """
    import numpy as np

    rows = _paired(*(side.row for side in sides))
    differs = np.ones(rows, np.bool_)
    if sides[0].predicted is not None:
        first, second = np.split(stacked([side.predicted for side in sides]), 2)
        differs = (first != second).reshape(rows, -1).any(axis=1)
    pair = pair_of_function(metric, [side.row for side in sides], differs)
    return _by_permutations(name, pair, sign, rows, config, alpha)


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


def _by_signs(pair: Pair, sides: Sequence[pa.Table], config: PromoteConfig, alpha: float) -> Comparison:
    right = [(side.column("label").to_numpy() == side.column("predicted").to_numpy()) for side in sides]
    rows, differing, wins = len(right[0]), int((right[0] != right[1]).sum()), int((right[1] > right[0]).sum())
    ends = sign_test(wins, differing, rows, alpha)
    # with a margin even a challenger that wins all rows may be too close
    all_won = sign_test(differing, differing, rows, alpha)[0] > config.margin
    difference = (2 * wins - differing) / rows
    return Comparison(
        "accuracy", *pair.values, difference, *ends, rows, ends[0] > config.margin, differing, alpha, can_win=all_won
    )


def _by_permutations(name: str, pair: Pair, sign: float, rows: int, config: PromoteConfig, alpha: float) -> Comparison:
    differing, values = int(pair.differs.sum()), pair.values
    ends = permutation_interval(pair, sign, config, alpha)
    difference, is_better = sign * (values[1] - values[0]), ends[0] > config.margin
    return Comparison(name, *values, difference, *ends, rows, is_better, differing, alpha, can_win=can_win(pair, alpha))


def _pair(score: Score, sides: Sequence[pa.Table]) -> Pair:
    import numpy as np

    if score.of_matrices is not None:
        # a classifier has one example of each row
        texts = [sides[0].column("label"), *(side.column("predicted") for side in sides)]
        columns = np.array([column.to_pylist() for column in texts])
        names, numbers = np.unique(columns, return_inverse=True)
        label, first, second = numbers.reshape(columns.shape)
        return pair_of_matrices(score.of_matrices, label, first, second, len(names))
    if score.metric is not None:
        metric, outputs = score.metric, [_outputs(side) for side in sides]
        rows = len(sides[0])
        return pair_of_sums(lambda sums: metric.of_sums(sums, rows), *map(metric.columns, outputs))
    if score.ratio is not None:
        return pair_of_sums(
            lambda sums: sums[..., 0] / np.maximum(sums[..., 1], 1), *(_ratio_sums(score, s) for s in sides)
        )
    return _of_function(score, sides)


def _ratio_sums(score: Score, side: pa.Table) -> Any:
    """Return float64 [rows, 2]: what each frozen row adds above and below."""
    import numpy as np

    assert score.ratio is not None
    # examples of one row, such as turns of a conversation, are not independent: they are swapped together
    row = np.unique(side.column(FROZEN_ROW).to_numpy(), return_inverse=True)[1]
    return np.stack([np.bincount(row, part) for part in score.ratio(_examples(side))], axis=1)


def _outputs(table: pa.Table) -> Any:
    """Return `Outputs`, or of pairs of answers `Rewards` or `MarkedRewards`."""
    import numpy as np

    kinds = (Outputs, MarkedRewards, Rewards)
    kind = next(each for each in kinds if {*each._fields} <= {*table.column_names})
    return kind(*(np.array(table.column(name).to_pylist()) for name in kind._fields))


def _of_function(score: Score, sides: Sequence[pa.Table]) -> Pair:
    """Return the pair of a metric that is only a function: one call for each permutation and model."""
    import numpy as np
    import pyarrow as pa

    found = _examples(pa.concat_tables(sides))

    def metric(examples: Ints) -> float:
        columns: list[Any] = [column[examples] for column in found if isinstance(column, np.ndarray)]
        drawn: Any = (
            RowSums._make([*columns, columns[0].sum()]) if isinstance(found, RowSums) else type(found)._make(columns)
        )
        value = score(drawn)
        return math.nan if value is None else value

    sources = [side.column(FROZEN_ROW).to_numpy() for side in sides]
    named = [side.column("predicted").to_numpy() for side in sides if "predicted" in side.column_names]
    differs = named[0] != named[1] if named else np.ones(len(np.unique(sources[0])), np.bool_)
    return pair_of_function(metric, sources, differs)


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
