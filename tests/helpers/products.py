"""Products of many cases: `make test-nightly` runs all of them, the other targets a sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def sampled(names: str, *axes: Sequence[Any], **options: Any) -> pytest.MarkDecorator:
    """Return the mark that parametrizes a test with the product of `axes`. All cases are nightly but a sample, in which
    each value of each axis occurs. options: of `pytest.mark.parametrize`."""
    sample = {tuple(number % len(axis) for axis in axes) for number in range(max(map(len, axes)))}
    places = product(*(range(len(axis)) for axis in axes))
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(
                *(axis[at] for axis, at in zip(axes, place, strict=True)),
                marks=[] if place in sample else [pytest.mark.nightly],
            )
            for place in places
        ],
        **options,
    )


def few(cases: Iterable[Any], count: int) -> list[Any]:
    """Return the cases as parameters of a test; all but the first `count` are nightly."""
    return [
        case if at < count else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)
        for at, case in enumerate(cases)
    ]
