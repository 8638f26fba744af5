"""Compute the figures of a classification from its predictions, by scikit-learn and scipy.

All figures can be computed again from the columns of predictions.parquet: the true and the predicted class, the
probabilities (float32) and the loss of each row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trnflow.tasks.evaluation.forward import Predictions

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

BINS = 15
"""The number of bins of equal width, by the probability of the predicted class, for the calibration error."""


def scaled(probabilities: Any) -> Floats:
    """Return probabilities as float64 [rows, classes], each row scaled to sum to 1: scikit-learn refuses float32's
    rounding errors."""
    import numpy as np

    wide = np.asarray(probabilities, dtype=np.float64)
    return np.asarray(wide / wide.sum(axis=1, keepdims=True))


def class_areas(expected: Ints, probabilities: Floats) -> list[float]:
    """Return the area under the ROC curve of each class against the rest; a class without rows, or with all rows, has
    none. With two classes both areas are equal."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    counts = np.bincount(expected, minlength=probabilities.shape[1])
    there = [index for index, count in enumerate(counts) if 0 < count < len(expected)]
    return [roc_auc_score(expected == index, probabilities[:, index]) for index in there]


def class_report(found: Predictions, labels: list[str]) -> list[Meta]:
    """Return {label, precision, recall, f1 (each 0 where undefined), support (rows of the class)} of each class, in the
    order of `labels`, the class names by index."""
    from sklearn.metrics import precision_recall_fscore_support

    columns = precision_recall_fscore_support(
        found.expected, found.predicted, labels=range(len(labels)), zero_division=0
    )
    return [
        {"label": label, "precision": float(p), "recall": float(r), "f1": float(f), "support": int(n)}
        for label, p, r, f, n in zip(labels, *columns, strict=True)
    ]


def confusion(found: Predictions, classes: int) -> Ints:
    """Return the numbers of rows by true class (first index) and predicted class, int64 [classes, classes]."""
    import numpy as np
    from sklearn.metrics import confusion_matrix

    return np.asarray(confusion_matrix(found.expected, found.predicted, labels=range(classes)), dtype=np.int64)


def calibration(found: Predictions) -> list[Meta]:
    """Sort predictions into 15 bins of equal width by the probability of the predicted class. Return the bins that
    have rows, by ascending probability: [{rows, confidence (mean probability of the predicted class), accuracy}]."""
    import numpy as np

    confidence = found.probabilities[np.arange(len(found.predicted)), found.predicted].astype(np.float64)
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    right = found.expected == found.predicted
    return [
        {"rows": int(here.sum()), "confidence": float(confidence[here].mean()), "accuracy": float(right[here].mean())}
        for here in (bins == index for index in range(BINS))
        if here.any()
    ]


def calibration_error(bins: list[Meta]) -> float:
    """Return the expected calibration error: the mean over rows of the distance between accuracy and confidence in the
    row's bin. bins: from `calibration`."""
    rows = sum(entry["rows"] for entry in bins)
    return float(sum(abs(entry["accuracy"] - entry["confidence"]) * entry["rows"] for entry in bins) / rows)


def worst(found: Predictions, count: int) -> list[int]:
    """Return the indices, in `found`, of the wrongly predicted rows with the highest loss, highest first, at most
    `count` of them."""
    import numpy as np

    wrong = np.flatnonzero(found.expected != found.predicted)
    return [int(index) for index in wrong[np.argsort(-found.loss[wrong], kind="stable")][:count]]
