"""The paired permutation test: how far apart two models would be by chance, if each row could as well be the other's.

A permutation swaps what the two models made of a row, for each frozen row with probability 1/2, all its examples together.
Exact for any number of rows; cost: up to TAIL / alpha permutations, fewer where the decision is certain before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from trnflow.tasks.evaluation.paired import BLOCK, TIE, Pair
from trnflow.tasks.evaluation.scores import Matrices
from trnflow.tasks.promotion.settings import PromoteConfig

if TYPE_CHECKING:
    import numpy as np

    from trnflow.tasks.system.arrays import Bools, Floats, Ints

Measure = Callable[[Any], float]
"""(places of examples, the champion's first, then the challenger's) -> a metric of these."""

TAIL = 100
"""Permutations that are meant to lie beyond the interval's end: with fewer the end is too uncertain."""
EARLY = 5
"""A challenger wins at EARLY / alpha permutations if none reaches its difference."""
PAID = math.exp(-EARLY) / EARLY
"""The part of alpha that goes to early wins which all permutations would not confirm: the integral from alpha on of
(1 - p) ** (EARLY / alpha), for p is uniform if chance alone decides."""
LEAST_ALPHA = 1e-6
"""No challenger wins at a smaller level, which would need more than 100 million permutations."""


def least_rows(alpha: float) -> int:
    """Return how many rows must be judged differently before a challenger that wins all of them can win."""
    return math.ceil(-math.log2(alpha))


def can_win(pair: Pair, alpha: float) -> bool:
    """Return whether permutations of so many rows let any challenger win."""
    return alpha >= LEAST_ALPHA and int(pair.differs.sum()) >= least_rows(alpha)


def permutation_interval(pair: Pair, sign: float, config: PromoteConfig, alpha: float) -> tuple[float, float]:
    """Return the interval of the difference, whose low end exceeds `promote.margin` by chance with probability `alpha` at
    most (with a margin: as many rows as without one are assumed to differ by chance).

    sign: 1, or -1 where less is better. Draws `promote.resamples` permutations at least, and no more where none can win.
    """
    import numpy as np

    difference = sign * (pair.values[1] - pair.values[0])
    is_open = can_win(pair, alpha)
    most = max(config.resamples, math.ceil(TAIL / alpha)) if is_open else config.resamples
    beyond = max(math.floor(alpha * (1.0 - PAID) * (most + 1)), 1)
    draw, largest, count, reaching, squares = np.random.default_rng(config.seed), np.zeros(0), 0, 0, 0.0
    while count < most:
        drawn = sign * pair.permute(draw, min(pair.block, most - count))
        drawn[np.abs(drawn - difference) <= TIE * (1.0 + abs(difference))] = difference
        count, reaching = count + len(drawn), reaching + int((~(drawn < difference - config.margin)).sum())
        largest, squares = np.sort(np.concatenate([largest, drawn]))[-beyond:], squares + float(np.square(drawn).sum())
        # so many reach the difference that it loses whatever the others are; or none does
        if count >= config.resamples and (reaching >= beyond or (not reaching and count >= EARLY / alpha)):
            break
    if count == most and is_open:
        return difference - float(largest[0]), difference + float(largest[0])
    # too few for the percentile: the normal distribution's, on the side of the margin that was decided
    reach = NormalDist().inv_cdf(1.0 - alpha) * math.sqrt(squares / count)
    is_won = is_open and not reaching
    low = difference - min(reach, float(largest[-1])) if is_won else min(difference - reach, config.margin)
    return low, difference + reach


def pair_of_matrices(
    function: Callable[[Matrices], Floats], label: Ints, first: Ints, second: Ints, classes: int
) -> Pair:
    """Return the pair of a metric of confusion matrices. label, first, second: int64 [rows], numbers of classes: the true
    one, the champion's and the challenger's."""
    import numpy as np

    # rows of the same three classes are swapped together, by a binomial number
    kinds, counts = np.unique(np.stack([label * classes + first, label * classes + second]), axis=1, return_counts=True)
    halves = np.where(kinds[0] != kinds[1], 0.5, 0.0)

    def metric(times: Ints, cells: Ints) -> Floats:
        order = np.argsort(cells, kind="stable")
        present, starts = np.unique(cells[order], return_index=True)
        matrices = np.zeros((len(times), classes * classes), np.int64)
        matrices[:, present] = np.add.reduceat(times[:, order], starts, axis=1)
        return function(Matrices(matrices.reshape(-1, classes, classes)))

    def permute(draw: np.random.Generator, size: int) -> Floats:
        swapped = draw.binomial(counts, halves, (size, len(counts)))
        times = np.concatenate([counts - swapped, swapped], axis=1)
        difference: Floats = metric(times, kinds[::-1].ravel()) - metric(times, kinds.ravel())
        return difference

    values = (float(metric(counts[None], kinds[0])[0]), float(metric(counts[None], kinds[1])[0]))
    return Pair(values, first != second, permute, max(BLOCK // (2 * len(counts) + classes * classes), 1))


def pair_of_function(metric: Measure, sources: Sequence[Ints], differs: Bools) -> Pair:
    """Return the pair of a metric that is called twice for each permutation. sources: each example's frozen row, of both
    models."""
    import numpy as np

    rows = len(np.unique(sources[0]))
    places = [np.unique(each, return_inverse=True)[1] for each in sources]
    # the challenger's rows follow the champion's
    examples_of = _clusters(np.concatenate([places[0], places[1] + rows]))
    both = np.arange(rows)

    def difference(swapped: Any) -> float:
        return metric(examples_of(both + rows * (1 - swapped))) - metric(examples_of(both + rows * swapped))

    def permute(draw: np.random.Generator, size: int) -> Floats:
        return np.array([difference(swapped) for swapped in draw.integers(0, 2, (size, rows))])

    values = metric(examples_of(both)), metric(examples_of(both + rows))
    return Pair(values, differs, permute, max(BLOCK // rows, 1))


def _clusters(sources: Ints) -> Callable[[Ints], Ints]:
    """Return a function from rows to all their examples, in the order of the rows. sources: each example's row."""
    import numpy as np

    sizes = np.bincount(sources)
    order, ends = np.argsort(sources, kind="stable"), np.cumsum(sizes)

    def examples_of(rows: Ints) -> Ints:
        count = sizes[rows]
        before = np.cumsum(count) - count
        found: Ints = order[np.arange(count.sum()) + np.repeat((ends - sizes)[rows] - before, count)]
        return found

    return examples_of
