"""Intervals beside the normal distribution's, and beside what can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from trnflow.tasks.evaluation.intervals import interval, ratio_interval, share_interval


def test_an_interval_has_95_percent() -> None:
    draw = np.random.default_rng(3)
    right = draw.permutation(np.repeat([0.0, 1.0], 200))
    wanted = pytest.approx([0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025], abs=0.004)
    assert ratio_interval(right, np.ones(400)) == wanted
    assert interval(draw.choice(right, (2000, 400)).mean(1)) == wanted


def test_a_share_of_few_rows_has_the_exact_interval() -> None:
    """Ten of ten, and none, by hand: the share at which that happens in 2.5 % of samples."""
    assert share_interval(10, 10) == pytest.approx([0.025**0.1, 1], abs=1e-9)
    assert share_interval(0, 10) == pytest.approx([0, 1 - 0.025**0.1], abs=1e-9)
    assert share_interval(2000, 4000) == pytest.approx([0.5 - 1.96 * 0.0079, 0.5 + 1.96 * 0.0079], abs=2e-4)


def test_a_row_is_drawn_with_its_tokens() -> None:
    """Of rows that all lose two nats a token every resample does, too, long or short."""
    tokens = np.random.default_rng(0).integers(1, 500, 50)
    assert ratio_interval(2.0 * tokens, tokens) == pytest.approx([2, 2])
