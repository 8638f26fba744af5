"""Classification metrics, computed with numpy alone, since the import of scikit-learn takes a second. The tests compare
both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """The metrics of a classification; classes are numbered from 0.

    Attributes:
        confusion: int64 [classes, classes], numbers of rows; first index the true class, second the predicted one.
        precision, recall, f1: float64 [classes], 0 where undefined.
        support: int64 [classes], the number of rows of each true class.
    """

    confusion: Ints
    precision: Floats
    recall: Floats
    f1: Floats
    support: Ints

    @property
    def accuracy(self) -> float:
        """The share of rows whose predicted class is the true one."""
        return float(self.confusion.trace() / self.confusion.sum())

    @property
    def f1_macro(self) -> float:
        """The mean F1 of all classes that are true or predicted in some row."""
        seen = (self.support + self.confusion.sum(axis=0)) > 0
        return float(self.f1[seen].mean())

    @property
    def f1_weighted(self) -> float:
        """The mean F1 of all classes, weighted by support."""
        return float((self.f1 * self.support).sum() / self.support.sum())


def score(expected: Ints, predicted: Ints, classes: int) -> Scores:
    """Return the scores of predictions. expected, predicted: int64 [rows], at least one row, each value in 0..classes-1."""
    import numpy as np

    confusion = np.bincount(expected * classes + predicted, minlength=classes * classes).reshape(classes, classes)
    hits, support, chosen = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    return Scores(
        confusion,
        precision=_ratio(hits, chosen),
        recall=_ratio(hits, support),
        f1=_ratio(2 * hits, support + chosen),
        support=support,
    )


def majority(training: Ints, expected: Ints, classes: int) -> Scores:
    """Return the scores of a baseline that predicts one class for every row: the most frequent class of `training`.

    training, expected: true classes, int64 [rows]. Of equally frequent classes the one with the lowest index is predicted.
    """
    import numpy as np

    answer = int(np.bincount(training, minlength=classes).argmax())
    return score(expected, np.full_like(expected, answer), classes)


def _ratio(part: Ints, whole: Ints) -> Floats:
    import numpy as np

    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
