"""The metric log_loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnflow.tasks.evaluation.classification import scaled

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.columns import ClassPredictions


def log_loss_of_probabilities(found: ClassPredictions) -> float:
    """Return the mean cross entropy in nats from the stored probabilities."""
    from sklearn.metrics import log_loss

    probabilities = scaled(found.probabilities)
    return float(log_loss(found.expected, probabilities, labels=range(probabilities.shape[1])))
