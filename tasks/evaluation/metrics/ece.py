"""The metric ece."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnflow.tasks.evaluation.classification import calibration, calibration_error

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.columns import ClassPredictions


def expected_calibration_error(found: ClassPredictions) -> float:
    return calibration_error(calibration(found))
