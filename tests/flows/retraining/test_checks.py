"""What a check of the data makes of a measured value."""

from __future__ import annotations

import pytest

from trnflow.flows.retraining.checks import _result
from trnflow.tasks.promotion.data_checks import CheckConfig, Measured


@pytest.mark.parametrize(
    ("measured", "result"),
    [
        (Measured(0.1, ""), "passed"),
        (Measured(0.2, ""), "stopped"),
        (Measured(0.2, "", by_chance=True), "passed"),
        (Measured(None, ""), "not applied"),
    ],
)
def test_a_check_stops_above_its_limit_unless_by_chance(measured: Measured, result: str) -> None:
    assert _result(CheckConfig(what="lengths", limit=0.1, then="stop"), measured) == result
