"""What a check of the data makes of a measured value."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trnflow.flows.retraining import checks
from trnflow.flows.retraining.checks import _result, check_data
from trnflow.tasks.events import EventLog
from trnflow.tasks.promotion import data_checks
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


def test_leakage_alone_asks_for_the_rows_with_the_frozen_ones_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bool] = []
    measured: dict[str, tuple[str, str]] = {}

    def load(change: Any, log: EventLog, *, raw: bool = False) -> Any:
        loaded.append(raw)
        return SimpleNamespace(digest=f"sha256:{'raw' if raw else 'now'}", meta={"name": "raw" if raw else "now"})

    def measure(check: CheckConfig, now: Any, raw: Any, before: Any) -> Measured:
        measured[check.what] = (now.meta["name"], raw.meta["name"])
        return Measured(0.0, "")

    monkeypatch.setattr(checks, "_loaded", load)
    monkeypatch.setattr(data_checks, "measure", measure)
    store = SimpleNamespace(home=tmp_path, link_files=lambda artifact, folder: folder)

    def check(*what: Any) -> None:
        recipe = SimpleNamespace(checks=[CheckConfig(what=each) for each in what])
        change: Any = SimpleNamespace(recipe=recipe, context=SimpleNamespace(store=store), frozen=None, champion=None)
        check_data(change, EventLog())

    check("rows")
    assert loaded == [False] and measured["rows"] == ("now", "now")
    check("rows", "leakage")
    assert loaded == [False, False, True] and measured["leakage"] == ("now", "raw")
