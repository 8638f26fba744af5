"""The metric f1_weighted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.columns import ClassPredictions


def f1_weighted(found: ClassPredictions) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(found.expected, found.predicted, average="weighted", zero_division=0))
