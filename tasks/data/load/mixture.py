"""Compute how many rows of the train split each source of a mixture contributes, and in which order. Pure functions of
counts and weights.

A weight is a source's share of the rows of train, exact to the row. `first_exhausted` makes the largest mixture in which
no row is repeated: the source with the fewest rows for its weight contributes all of them, every other source a sample.
`all_exhausted` makes the smallest mixture that contains every row: the source with the most rows for its weight
contributes each row once, every other source repeats rows. Without weights every source contributes all its rows once.
The names are those of `datasets.interleave_datasets`, which, unlike this module, draws rows at random.
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
    """Return {source: number of rows that it contributes to the train split}, for a mixture of several sources (data
    sets). The number is larger than the source's own number of rows if rows are repeated.

    Args:
        available: {source: rows that it has, above 0}.
        weights: {source: its share of the rows of train, relative to the other weights}, or None to take all rows once.
        strategy: `first_exhausted` (no row is repeated: the source with the fewest rows for its weight gives all of
            its rows) or `all_exhausted` (every row is used: the source with the most rows for its weight gives each row
            once, the others repeat rows).
        limit: the largest total of rows of all sources, or None for no limit. A limit below the total of the strategy
            reduces the rows of all sources in the same proportion.
    """
    parts = {name: Fraction(repr(weights[name])) if weights else Fraction(count) for name, count in available.items()}
    shares = {name: part / sum(parts.values()) for name, part in parts.items()}
    totals = [available[name] / share for name, share in shares.items()]
    total = int(min(totals)) if strategy == "first_exhausted" else -int(-max(totals) // 1)
    return apportioned(min(total, limit or total), shares)


def apportioned(total: int, shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Divide `total` rows among sources (data sets) by their shares, {source: share}, which sum to 1; return {source:
    rows}. Each number is total x share, rounded down. The rows that remain after rounding go to the sources with the
    largest fractional parts, one row each."""
    exact = {name: total * share for name, share in shares.items()}
    found = {name: int(part) for name, part in exact.items()}
    by_remainder = sorted(exact, key=lambda name: found[name] - exact[name])
    for name in by_remainder[: total - sum(found.values())]:
        found[name] += 1
    return found


def interleaved(counts: Mapping[str, int], block: int) -> Iterator[tuple[dict[str, int], NDArray[np.int64]]]:
    """Compute the order in which the rows of several sources (data sets) are mixed, in blocks of about `block` rows.
    counts: {source: rows that it contributes}.

    Row k of a source with n rows has the position (k + 1/2) / n, so every stretch of the mixture contains the sources
    in proportion. Yields two values for each block: {source: how many of the source's next rows to read}, and int64
    [rows], the order in which to write the block's rows. The order is given as indices into the rows that were read,
    with the sources one after another."""
    import numpy as np

    blocks = -(-sum(counts.values()) // block)
    done = dict.fromkeys(counts, 0)
    for number in range(1, blocks + 1):
        until = {name: _before(number, blocks, count) for name, count in counts.items()}
        places = [(np.arange(done[name], until[name]) + 0.5) / count for name, count in counts.items()]
        yield {name: until[name] - done[name] for name in counts}, np.argsort(np.concatenate(places), kind="stable")
        done = until


def _before(number: int, blocks: int, count: int) -> int:
    """Return how many of a source's `count` rows come before block `number`: those rows k with (k + 1/2) / count <
    number / blocks."""
    return min(count, max(0, -(-(2 * number * count - blocks) // (2 * blocks))))
