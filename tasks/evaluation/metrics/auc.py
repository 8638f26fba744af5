"""The metric auc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnflow.tasks.evaluation.classification import class_areas, scaled

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.columns import ClassPredictions


def area_under_curve(found: ClassPredictions) -> float | None:
    """Return the mean area under the ROC curve, one class against the rest; None when all rows have one class."""
    import numpy as np

    areas = class_areas(found.expected, scaled(found.probabilities))
    return float(np.mean(areas)) if areas else None
