"""Settings that meet each other: all combinations, and a small choice of them in which every pair still occurs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Combination = dict[str, Any]


def all_of(
    values: Mapping[str, Sequence[Any]], allowed: Callable[[Combination], bool] = lambda one: True
) -> list[Combination]:
    made = (dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))
    return [one for one in made if allowed(one)]


def pairwise(candidates: Sequence[Combination]) -> list[Combination]:
    """The fewest that a greedy choice finds in which each two values that some candidate has together still meet.
    Deterministic: of equals the first is taken."""
    missing = {pair for one in candidates for pair in _pairs(one)}
    chosen: list[Combination] = []
    while missing:
        best = max(candidates, key=lambda one: len(missing & _pairs(one)))
        missing -= _pairs(best)
        chosen.append(best)
    return chosen


def _pairs(one: Combination) -> set[frozenset[tuple[str, Any]]]:
    return {frozenset(pair) for pair in combinations(one.items(), 2)}
