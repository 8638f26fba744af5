"""A metric of an evaluation during training: of what the task decides on validation, as evaluate_model decides."""

from __future__ import annotations

import numpy as np

from trnflow.tasks.evaluation.best_metric import predictions_of
from trnflow.tasks.kinds.registry import KINDS
from trnflow.tasks.training.selection import Validated


def test_labels_are_decided_by_the_threshold_that_is_best_on_validation() -> None:
    likely = np.array([[0.3, 0.1], [0.1, 0.3], [0.35, 0.05]], np.float32)
    expected = (likely > 0.2).astype(np.float32)
    kind = KINDS["multi_label"]
    found = predictions_of(kind, Validated(1.0, 6, expected, np.log(likely / (1 - likely))))
    assert found.decided.tolist() == expected.tolist() and kind.values(found)["f1_micro"] == 1.0
