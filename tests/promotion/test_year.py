"""The promise of a year: nights of judgements, simulated. `python -m tests.promotion.test_year` prints the table."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.promotion.test_bootstrap import classes
from trnflow.tasks.promotion.bootstrap import DIFFERING, compare_scores
from trnflow.tasks.promotion.settings import PromoteConfig

ROWS = 2000
CONFIG = PromoteConfig(metric="accuracy")


@cache
def wins(right: int, differing: int) -> bool:
    """Compare two models as a retrain does. right: of the differing rows, those that the challenger has right."""
    truth = np.full(ROWS, "a")
    other = np.arange(ROWS) < right, (np.arange(ROWS) >= right) & (np.arange(ROWS) < differing)
    with tempfile.TemporaryDirectory() as folder:
        paths = [classes(Path(folder) / str(n), np.where(wrong, "b", "a"), truth) for n, wrong in enumerate(other)]
        return compare_scores(*paths, "classification", CONFIG, CONFIG.alpha).is_better


def promoted(gain: float, nights: int, years: int, seed: int = 1) -> float:
    """Return the share of years in which a challenger is promoted in so many nights.

    Half of the rows that are judged differently stay the same all year, half are noise of each night's training.
    """
    draw, differing = np.random.default_rng(seed), round(ROWS * DIFFERING)
    chance, half = (1 + gain / DIFFERING) / 2, differing // 2
    right = draw.binomial(half, chance, (years, 1)) + draw.binomial(half, chance, (years, nights))
    winning = np.array([wins(count, differing) for count in range(differing + 1)])
    return float(winning[right].any(axis=1).mean())


@pytest.mark.nightly
def test_a_year_of_nights_keeps_its_promise() -> None:
    assert promoted(0.0, 365, 20_000) <= 0.05
    assert promoted(0.03, 10, 20_000) >= 0.95
    assert promoted(0.02, 10, 20_000) >= 0.80


if __name__ == "__main__":
    for gain, nights in ((0.0, 365), (0.03, 10), (0.02, 10)):
        print(
            f"gain {gain:.0%}, {nights} nights: promoted in {promoted(gain, nights, 20_000):.1%} of 20,000 simulations"
        )
