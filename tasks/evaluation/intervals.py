"""Intervals of metrics: of resamples, whose seed is fixed, so that the same rows give the same interval; of a share exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trnflow.tasks.system.arrays import Floats

CONFIDENCE = 0.95
RESAMPLES = 1000
SEED = 0
AT_ONCE = 2**22
"""Drawn values that are held at once, at most 50 resamples of them."""


def interval(values: Floats) -> list[float]:
    """Return the ends [low, high] of the 95 % interval of a metric's values, one a resample, float64 [resamples]."""
    import numpy as np

    tail = (1 - CONFIDENCE) / 2
    return [float(edge) for edge in np.quantile(values, [tail, 1 - tail])]


def share_interval(right: int, rows: int) -> list[float]:
    """Return the exact interval [low, high] of a share of rows, as Clopper and Pearson compute it: where all are right,
    resamples of few rows are, too."""
    from scipy.stats import binomtest

    return [float(end) for end in binomtest(right, rows).proportion_ci(CONFIDENCE, "exact")]


def ratio_interval(above: Any, below: Any) -> list[float]:
    """Return the interval [low, high] of sum(above) / sum(below), both [rows]."""
    import numpy as np
    from scipy.stats import bootstrap

    pairs = tuple(np.asarray(column, dtype=np.float64) for column in (above, below))
    if len(pairs[0]) < 2:
        return [float(pairs[0].sum() / pairs[1].sum())] * 2
    result = bootstrap(
        pairs,
        _ratio,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, min(50, AT_ONCE // len(pairs[0]))),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    return [float(result.confidence_interval.low), float(result.confidence_interval.high)]


def _ratio(above: Floats, below: Floats, axis: int) -> Floats:
    """Return the ratio of the sums of each resample."""
    import numpy as np

    # a resample of few rows may have a sum under 1, which counts as 1
    ratio: Floats = above.sum(axis=axis) / np.maximum(below.sum(axis=axis), 1.0)
    return ratio
