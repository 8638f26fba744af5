"""The promise of a year: nights of judgements, simulated. `python -m tests.promotion.test_year` prints the table."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.promotion.test_compare import classes
from trnflow.tasks.promotion.compare import DIFFERING, TAIL, bootstrap, compare_scores
from trnflow.tasks.promotion.settings import PromoteConfig

ROWS = 2000
EACH = round(ROWS * DIFFERING) // 2
"""Of each of two classes, the rows that the models judge differently."""
CONFIG = PromoteConfig()
METRICS = ("accuracy", "f1_macro")
OLD_ALPHA = 0.025 / (1 - 1 / TAIL)
"""The rule before: 2.5 % for each judgement, by the percentiles of 2,000 resamples, also for accuracy."""


@cache
def wins(metric: str, right: tuple[int, int], is_old: bool) -> bool:
    """Compare two models as a retrain does. right: of each class's differing rows, those that the challenger has right."""
    truth = np.repeat(["a", "b"], ROWS // 2)
    at = np.arange(ROWS) % (ROWS // 2)
    wins_at = at < np.repeat(right, ROWS // 2)
    other = np.where(truth == "a", "b", "a")
    # as many further rows of each class are wrong in both models
    wrong = (wins_at | (at >= ROWS // 2 - EACH), ~wins_at & (at < EACH) | (at >= ROWS // 2 - EACH))
    alpha = OLD_ALPHA if is_old else CONFIG.alpha
    with tempfile.TemporaryDirectory() as folder:
        paths = [classes(Path(folder) / str(n), np.where(each, other, truth), truth) for n, each in enumerate(wrong)]
        config = CONFIG.model_copy(update={"metric": metric})
        return compare_scores(*paths, "classification", config, alpha).is_better


@cache
def old_accuracy(right: int) -> bool:
    shares = np.array([right, 2 * EACH - right, ROWS - 2 * EACH]) / ROWS

    def resample(draw: np.random.Generator, size: int) -> NDArray[Any]:
        won, lost, _ = draw.multinomial(ROWS, shares, size).T
        return np.asarray((won - lost) / ROWS)

    return bootstrap(resample, 2000, 1.0, CONFIG, OLD_ALPHA)[0] > 0


@cache
def winning(metric: str, is_old: bool = False) -> NDArray[np.bool_]:
    """Return bool [right of class a, right of class b]: which challengers win."""
    table = np.zeros((EACH + 1, EACH + 1), bool)
    if metric == "accuracy":
        line = [
            old_accuracy(n) if is_old else wins(metric, (min(n, EACH), max(n - EACH, 0)), False)
            for n in range(2 * EACH + 1)
        ]
        return np.array(line)[np.add.outer(np.arange(EACH + 1), np.arange(EACH + 1))]
    least = EACH
    for first in range(EACH // 3, EACH + 1):  # fewer right of a class never occur; more right never lose
        while least >= 0 and wins(metric, (first, least), is_old):
            least -= 1
        table[first, least + 1 :] = True
    return table


def promoted(gain: float, nights: int, years: int, metric: str = "accuracy", is_old: bool = False) -> float:
    """Return the share of years in which a challenger is promoted in so many nights.

    Half of the rows that are judged differently stay the same all year, half are noise of each night's training.
    """
    draw, chance, half = np.random.default_rng(1), (1 + gain / DIFFERING) / 2, EACH // 2
    right = draw.binomial(half, chance, (2, years, 1)) + draw.binomial(half, chance, (2, years, nights))
    return float(winning(metric, is_old)[right[0], right[1]].any(axis=1).mean())


@pytest.mark.nightly
@pytest.mark.parametrize("metric", METRICS)
def test_a_year_of_nights_keeps_its_promise(metric: str) -> None:
    assert promoted(0.0, 365, 20_000, metric) <= 0.05
    assert promoted(0.03, 10, 20_000, metric) >= 0.95
    assert promoted(0.02, 10, 20_000, metric) >= 0.80
    assert promoted(0.0, 365, 20_000, metric, is_old=True) > 0.4  # which the promise is for


if __name__ == "__main__":
    for metric in METRICS:
        for gain, nights in ((0.0, 365), (0.03, 10), (0.02, 10)):
            shares = [promoted(gain, nights, 20_000, metric, is_old) for is_old in (True, False)]
            print(
                f"{metric}, gain {gain:.0%}, {nights} nights: promoted in {shares[1]:.1%} of 20,000 simulations; "
                f"by the rule before in {shares[0]:.1%}"
            )
