"""How many rows of train each source of a mixture gives, and in which order.

A weight is a share, exact to the row. Names are those of `datasets.interleave_datasets`, which draws at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from trnflow.tasks.data.load.config import Strategy


def amounts(
    available: Mapping[str, int], weights: Mapping[str, float] | None, strategy: Strategy, limit: int | None = None
) -> dict[str, int]:
    """Return {source: rows of train}, more than it has if rows are repeated. weights: None for all once."""
    parts = {name: Fraction(repr(weights[name])) if weights else Fraction(count) for name, count in available.items()}
    shares = {name: part / sum(parts.values()) for name, part in parts.items()}
    totals = [available[name] / share for name, share in shares.items()]
    # the largest mixture without repetition, or the smallest that has every row
    total = int(min(totals)) if strategy == "first_exhausted" else -int(-max(totals) // 1)
    total = min(total, limit or total)
    exact = {name: total * share for name, share in shares.items()}
    # each is rounded down, and the rest goes to the largest fractions
    rows = {name: int(part) for name, part in exact.items()}
    by_remainder = sorted(exact, key=lambda name: rows[name] - exact[name])
    for name in by_remainder[: total - sum(rows.values())]:
        rows[name] += 1
    return rows


def interleaved(counts: Mapping[str, int], block: int) -> Iterator[tuple[dict[str, int], NDArray[np.int64]]]:
    """Mix sources in blocks of about `block` rows; yield {source: next rows to read} and their order, int64 [rows]."""
    blocks = -(-sum(counts.values()) // block)
    before = dict.fromkeys(counts, 0)
    for number in range(1, blocks + 1):
        until = {name: _before(number, blocks, count) for name, count in counts.items()}
        # row k of n is at (k + 1/2) / n, so every stretch has the sources in proportion
        places = [(np.arange(before[name], until[name]) + 0.5) / count for name, count in counts.items()]
        yield {name: until[name] - before[name] for name in counts}, np.argsort(np.concatenate(places), kind="stable")
        before = until


def _before(number: int, blocks: int, count: int) -> int:
    """Return how many of `count` rows come before block `number`: (k + 1/2) / count < number / blocks."""
    return min(count, max(0, -(-(2 * number * count - blocks) // (2 * blocks))))
