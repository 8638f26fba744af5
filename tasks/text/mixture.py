"""How many train rows each source of a mixture gives, and in which order: pure functions of counts and weights.

Weights are shares of the rows of train, to the row. `first_exhausted`: as many rows as there can be without repeating one, so
the source that is scarcest for its weight gives all it has and the others a sample. `all_exhausted`: as few as there can be
without leaving one out, so that source's opposite gives all it has and the others repeat theirs: whole copies, then a
sample. (The words are those of `datasets.interleave_datasets`, which draws by chance where this counts.) Without weights every
source gives all its rows once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Strategy = Literal["first_exhausted", "all_exhausted"]


def amounts(
    available: Mapping[str, int], weights: Mapping[str, float] | None, strategy: Strategy, limit: int | None = None
) -> dict[str, int]:
    """Rows of each source, at most `limit` in all. available: rows there are, each above 0; weights: need not sum to 1."""
    parts = {name: Fraction(repr(weights[name])) if weights else Fraction(count) for name, count in available.items()}
    shares = {name: part / sum(parts.values()) for name, part in parts.items()}
    totals = [available[name] / share for name, share in shares.items()]
    total = int(min(totals)) if strategy == "first_exhausted" else -int(-max(totals) // 1)
    return apportioned(min(total, limit or total), shares)


def apportioned(total: int, shares: Mapping[str, Fraction]) -> dict[str, int]:
    """`total` rows by shares that sum to 1: rounded down, the rest to the largest remainders (equal ones in order)."""
    exact = {name: total * share for name, share in shares.items()}
    found = {name: int(part) for name, part in exact.items()}
    by_remainder = sorted(exact, key=lambda name: found[name] - exact[name])
    for name in by_remainder[: total - sum(found.values())]:
        found[name] += 1
    return found


def interleaved(counts: Mapping[str, int], block: int) -> Iterator[tuple[dict[str, int], NDArray[np.int64]]]:
    """The order of a mixture, in blocks of about `block` rows: (rows of each source, what to take of them put end to end).

    Row k of a source of n stands at (k + 1/2) / n, so every stretch holds the sources by their shares. Memory: one block."""
    import numpy as np

    blocks = -(-sum(counts.values()) // block)
    done = dict.fromkeys(counts, 0)
    for number in range(1, blocks + 1):
        until = {name: _before(number, blocks, count) for name, count in counts.items()}
        places = [(np.arange(done[name], until[name]) + 0.5) / count for name, count in counts.items()]
        yield {name: until[name] - done[name] for name in counts}, np.argsort(np.concatenate(places), kind="stable")
        done = until


def _before(number: int, blocks: int, count: int) -> int:
    """How many rows k of `count` have (k + 1/2) / count below number / blocks."""
    return min(count, max(0, -(-(2 * number * count - blocks) // (2 * blocks))))
