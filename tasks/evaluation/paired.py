"""Two models on the same rows: a metric's difference, and differences by chance, if each row could as well be the other's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from trnflow.tasks.system.arrays import Bools, Floats

BLOCK = 1 << 17
"""Drawn values that are held at once; bounds memory."""
TIE = 1e-12
"""Differences that are closer are equal: sums of other orders."""


class Pair(NamedTuple):
    """Two models on the same rows.

    Attributes:
        values: The metric of the champion and of the challenger.
        differs: bool [rows]: which rows count differently for the two.
        permute: (generator, how many) -> the challenger's metric less the champion's, of as many permutations.
        block: How many permutations are drawn at once.
    """

    values: tuple[float, float]
    differs: Bools
    permute: Callable[[np.random.Generator, int], Floats]
    block: int


def pair_of_sums(value: Callable[[Floats], Any], champion: Floats, challenger: Floats) -> Pair:
    """Return the pair of a metric of sums over rows. value: sums [..., k] -> metric [...]; champion, challenger: float64
    [rows, k], what each row adds."""
    import numpy as np

    sums, others = champion.sum(axis=0), challenger.sum(axis=0)
    differs = (champion != challenger).any(axis=1)
    moving = (challenger - champion)[differs]

    def permute(draw: np.random.Generator, size: int) -> Floats:
        swapped = draw.integers(0, 2, (size, len(moving)), np.int8).astype(np.float64)
        moved = np.einsum("sr,rk->sk", swapped, moving)  # without the threads of a matrix product
        difference: Floats = value(others - moved) - value(sums + moved)
        return difference

    return Pair((float(value(sums)), float(value(others))), differs, permute, max(BLOCK // max(len(moving), 1), 1))


def chance(pair: Pair, sign: float, permutations: int, seed: int = 0) -> tuple[float, float]:
    """Return how likely permutations are to put the second model as far below the first as it is, and as far above.

    sign: 1, or -1 where less is better.
    """
    import numpy as np

    difference, draw = sign * (pair.values[1] - pair.values[0]), np.random.default_rng(seed)
    below = above = 0
    for start in range(0, permutations, pair.block):
        drawn = sign * pair.permute(draw, min(pair.block, permutations - start))
        near = TIE * (1.0 + abs(difference))
        below += int((~(drawn > difference + near)).sum())
        above += int((~(drawn < difference - near)).sum())
    # what was seen is a permutation, too: no probability is 0
    return (below + 1) / (permutations + 1), (above + 1) / (permutations + 1)
