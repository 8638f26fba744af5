"""Compute the figures of a classification from its predictions, by scikit-learn and scipy.

All figures can be computed again from the columns of predictions.parquet: the true and the predicted class, the
probabilities (float32) and the loss of each row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.intervals import CONFIDENCE, RESAMPLES, SEED, interval, mean_interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trnflow.tasks.evaluation.forward import Predictions

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

BINS = 15
"""The number of bins of equal width, by the probability of the predicted class, for the calibration error."""

BLOCK = 1 << 22
"""Counts of resampled confusion matrices that are held at once; bounds memory."""


def scores(found: Predictions) -> Meta:
    """Return {metric: value} of a classifier's predictions on a split: accuracy, f1_macro (over the classes that are
    true or predicted in some row), f1_weighted, mcc (Matthews correlation), loss (mean cross entropy in nats), log_loss
    (the same from the stored probabilities, each row's scaled to sum to 1), ece (expected calibration error) and auc
    (mean over the classes of one against the rest; absent when all rows have one class)."""
    from sklearn.metrics import accuracy_score, f1_score, log_loss, matthews_corrcoef

    probabilities = scaled(found.probabilities)
    metrics = {
        "accuracy": accuracy_score(found.expected, found.predicted),
        "f1_macro": f1_score(found.expected, found.predicted, average="macro", zero_division=0),
        "f1_weighted": f1_score(found.expected, found.predicted, average="weighted", zero_division=0),
        "mcc": matthews_corrcoef(found.expected, found.predicted),
        "loss": found.loss.mean(),
        "log_loss": log_loss(found.expected, probabilities, labels=range(probabilities.shape[1])),
        "ece": calibration_error(calibration(found)),
    }
    if (area := _auc(found.expected, probabilities)) is not None:
        metrics["auc"] = area
    return {name: float(value) for name, value in metrics.items()}


def scaled(probabilities: Any) -> Floats:
    """Return probabilities as float64 [rows, classes], each row scaled to sum to 1: scikit-learn refuses float32's
    rounding errors."""
    import numpy as np

    wide = np.asarray(probabilities, dtype=np.float64)
    return np.asarray(wide / wide.sum(axis=1, keepdims=True))


def _auc(expected: Ints, probabilities: Floats) -> float | None:
    """The mean over classes of the area under the ROC curve, one class against the rest; a class without rows, or with all
    rows, has none. With two classes both areas are equal."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    counts = np.bincount(expected, minlength=probabilities.shape[1])
    there = [index for index, count in enumerate(counts) if 0 < count < len(expected)]
    areas = [roc_auc_score(expected == index, probabilities[:, index]) for index in there]
    return float(np.mean(areas)) if areas else None


def majority(training: Ints, expected: Ints, classes: int) -> Meta:
    """Return accuracy and f1_weighted of a baseline that predicts one class for every row: the most frequent class of
    `training`.

    training, expected: true classes, int64 [rows]. Of equally frequent classes the one with the lowest index is predicted.
    """
    import numpy as np
    from sklearn.metrics import accuracy_score, f1_score

    answers = np.full_like(expected, np.bincount(training, minlength=classes).argmax())
    return {
        "accuracy": float(accuracy_score(expected, answers)),
        "f1_weighted": float(f1_score(expected, answers, average="weighted", zero_division=0)),
    }


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


def intervals(found: Predictions, matrix: Ints) -> Meta:
    """Return the bootstrap interval [low, high] of each of the metrics accuracy, f1_macro, f1_weighted and loss, by
    the metric's name; and `confidence` (of the intervals, 0.95) and `resamples` (how many were drawn).

    matrix: the confusion matrix of `found`. Resamples of the first three metrics are confusion matrices drawn from a
    multinomial distribution, which is the same as drawing rows with replacement."""
    import numpy as np

    random, rows = np.random.default_rng(SEED), int(matrix.sum())
    block = max(BLOCK // matrix.size, 1)
    drawn = []
    for start in range(0, RESAMPLES, block):
        count = min(block, RESAMPLES - start)
        cells = random.multinomial(rows, matrix.ravel() / rows, size=count)
        drawn.append(_of_matrices(cells.reshape(count, *matrix.shape)))
    columns = np.concatenate(drawn, axis=1)
    found_intervals = {
        name: interval(values) for name, values in zip(("accuracy", "f1_macro", "f1_weighted"), columns, strict=True)
    }
    return {**found_intervals, "loss": mean_interval(found.loss), "confidence": CONFIDENCE, "resamples": RESAMPLES}


def _of_matrices(matrices: Ints) -> Floats:
    """float64 [3, matrices]: accuracy, f1_macro and f1_weighted of confusion matrices, int64 [matrices, classes, classes]."""
    import numpy as np

    hits = np.diagonal(matrices, axis1=1, axis2=2)
    support, chosen = matrices.sum(axis=2), matrices.sum(axis=1)
    seen = support + chosen
    f1 = np.divide(2 * hits, seen, out=np.zeros(seen.shape), where=seen > 0)
    rows = support.sum(axis=1)
    return np.stack(
        [hits.sum(axis=1) / rows, f1.sum(axis=1) / (seen > 0).sum(axis=1), (f1 * support).sum(axis=1) / rows]
    )


def worst(found: Predictions, count: int) -> list[int]:
    """Return the indices, in `found`, of the wrongly predicted rows with the highest loss, highest first, at most
    `count` of them."""
    import numpy as np

    wrong = np.flatnonzero(found.expected != found.predicted)
    return [int(index) for index in wrong[np.argsort(-found.loss[wrong], kind="stable")][:count]]
