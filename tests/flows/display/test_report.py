"""Results as text."""

from __future__ import annotations

from trnflow.flows.display.report import figures


def test_the_users_own_metrics_come_first_and_what_they_are_compared_with_beside_them() -> None:
    values = {"loss": 0.25, "zeal": 3.0, "accuracy": 0.91234, "accuracy_baseline": 0.5, "zeal_before": 1.0, "rows": 7}
    assert figures(values, own=["zeal"]) == "zeal 3 (before 1)  accuracy 0.9123 (baseline 0.5)  loss 0.25  rows 7"
    assert figures(values, most=1) == "accuracy 0.9123 (baseline 0.5)"
