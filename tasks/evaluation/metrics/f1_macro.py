"""The metric f1_macro."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.columns import ClassPredictions


def f1_macro(found: ClassPredictions) -> float:
    """Return the mean over the classes that are true or predicted in some row."""
    from sklearn.metrics import f1_score

    return float(f1_score(found.expected, found.predicted, average="macro", zero_division=0))
