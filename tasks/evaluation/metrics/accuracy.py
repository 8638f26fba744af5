"""The metric accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.columns import ClassPredictions


def accuracy(found: ClassPredictions) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(found.expected, found.predicted))
