"""Bootstrap intervals beside the normal distribution's."""

from __future__ import annotations

import numpy as np
import pytest

from trnflow.tasks.evaluation.intervals import interval, ratio_interval


def test_an_interval_has_95_percent() -> None:
    draw = np.random.default_rng(3)
    right = draw.permutation(np.repeat([0.0, 1.0], 200))
    wanted = pytest.approx([0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025], abs=0.004)
    assert ratio_interval(right, np.ones(400)) == wanted
    assert interval(draw.choice(right, (2000, 400)).mean(1)) == wanted
