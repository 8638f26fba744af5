"""The metric mcc."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.columns import ClassPredictions


def matthews_correlation(found: ClassPredictions) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(found.expected, found.predicted))
