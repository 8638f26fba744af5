"""The metric ece, and the calibration curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.columns import ClassPredictions

BINS = 15
"""Bins of equal width for the calibration error."""


def expected_calibration_error(found: ClassPredictions) -> float:
    return calibration_error(calibration(found))


def calibration(predictions: ClassPredictions) -> list[Meta]:
    """Return the bins with rows, by ascending probability: [{rows, confidence, accuracy}]."""
    import numpy as np

    confidence = predictions.probabilities[np.arange(len(predictions.predicted)), predictions.predicted].astype(
        np.float64
    )
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    right = predictions.expected == predictions.predicted
    return [
        {"rows": int(here.sum()), "confidence": float(confidence[here].mean()), "accuracy": float(right[here].mean())}
        for here in (bins == index for index in range(BINS))
        if here.any()
    ]


def calibration_error(bins: list[Meta]) -> float:
    """Return the expected calibration error of the bins of `calibration`."""
    rows = sum(entry["rows"] for entry in bins)
    return float(sum(abs(entry["accuracy"] - entry["confidence"]) * entry["rows"] for entry in bins) / rows)
