"""Classification scores from labels, with numpy alone; the same numbers as scikit-learn's, tested against it."""

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
    """confusion: int64 [classes, classes], rows are the true class; precision, recall, f1: float64 [classes], 0 where
    undefined; support: int64 [classes], true rows of each. Averages run over the classes that are true or predicted
    somewhere; the weighted one by support."""

    confusion: Ints
    precision: Floats
    recall: Floats
    f1: Floats
    support: Ints

    @property
    def accuracy(self) -> float:
        return float(self.confusion.trace() / self.confusion.sum())

    @property
    def f1_macro(self) -> float:
        seen = (self.support + self.confusion.sum(axis=0)) > 0
        return float(self.f1[seen].mean())

    @property
    def f1_weighted(self) -> float:
        return float((self.f1 * self.support).sum() / self.support.sum())


def score(expected: Ints, predicted: Ints, classes: int) -> Scores:
    """expected, predicted: int64 [rows], at least one, each in 0..classes-1."""
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
    """The scores of always answering the most frequent class of `training` (the lowest of several) to `expected`."""
    import numpy as np

    answer = int(np.bincount(training, minlength=classes).argmax())
    return score(expected, np.full_like(expected, answer), classes)


def _ratio(part: Ints, whole: Ints) -> Floats:
    import numpy as np

    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
