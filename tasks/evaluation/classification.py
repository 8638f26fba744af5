"""Figures of a classification, by scikit-learn and scipy, from the columns of predictions.parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.columns import ClassPredictions
    from trnflow.tasks.evaluation.evaluated_rows import EvaluatedRows
    from trnflow.tasks.evaluation.report_document import ConfusedPair
    from trnflow.tasks.system.arrays import Floats, Ints

PAIRS, PAIR_ROWS = 20, 5
"""Pairs of classes that the report lists, and numbers of their rows."""


def scaled(probabilities: Any) -> Floats:
    """Return probabilities as float64 [rows, classes], each row summing to 1."""
    import numpy as np

    # scikit-learn refuses float32's rounding errors
    wide = np.asarray(probabilities, dtype=np.float64)
    return np.asarray(wide / wide.sum(axis=1, keepdims=True))


def class_areas(expected: Ints, probabilities: Floats) -> list[float]:
    """Return the area under the ROC curve of each class against the rest, without classes that have no or all rows."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    counts = np.bincount(expected, minlength=probabilities.shape[1])
    there = [index for index, count in enumerate(counts) if 0 < count < len(expected)]
    return [roc_auc_score(expected == index, probabilities[:, index]) for index in there]


def class_report(predictions: ClassPredictions, labels: list[str]) -> list[Meta]:
    """Return {label, precision, recall, f1, support} of each class, in the order of `labels`."""
    from sklearn.metrics import precision_recall_fscore_support

    columns = precision_recall_fscore_support(
        predictions.expected, predictions.predicted, labels=range(len(labels)), zero_division=0
    )
    return [
        {"label": label, "precision": float(p), "recall": float(r), "f1": float(f), "support": int(n)}
        for label, p, r, f, n in zip(labels, *columns, strict=True)
    ]


def confusion(predictions: ClassPredictions, classes: int) -> Ints:
    """Return the numbers of rows by true class and predicted class, int64 [classes, classes]."""
    import numpy as np
    from sklearn.metrics import confusion_matrix

    return np.asarray(
        confusion_matrix(predictions.expected, predictions.predicted, labels=range(classes)), dtype=np.int64
    )


def worst(predictions: ClassPredictions, count: int) -> list[int]:
    """Return the indices of the wrongly predicted rows with the highest loss, highest first, at most `count`."""
    import numpy as np

    wrong = np.flatnonzero(predictions.expected != predictions.predicted)
    return [int(index) for index in wrong[np.argsort(-predictions.loss[wrong], kind="stable")][:count]]


def confused(
    predictions: ClassPredictions, matrix: Ints, labels: list[str], rows: Ints, given: EvaluatedRows
) -> list[ConfusedPair]:
    """Return the pairs of true and predicted class with the most wrong rows, at most `PAIRS`.

    matrix: of `confusion`; rows: of each prediction, in `given`.
    """
    import numpy as np

    wrong, supports = matrix.copy(), matrix.sum(axis=1)
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]
    pairs: list[ConfusedPair] = []
    for true, predicted in zip(*np.unravel_index(order, wrong.shape), strict=True):
        if count := int(wrong[true, predicted]):
            here = rows[(predictions.expected == true) & (predictions.predicted == predicted)]
            first = [given.named(int(row)) for row in np.sort(here)[:PAIR_ROWS]]
            share = count / int(supports[true])
            pairs.append(
                {"label": labels[true], "predicted": labels[predicted], "count": count, "share": share, "rows": first}
            )
    return pairs
