"""The page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trnflow.flows.display.run_page import run_page
from trnflow.tasks.store import Store


def test_a_figure_in_seconds_says_its_share_of_the_stage(tmp_path: Path) -> None:
    ran: dict[str, Any] = {
        "stage": "evaluate_model",
        "action": "ran",
        "artifact": None,
        "why": "",
        "key": None,
        "seconds": 4.0,
    }
    ran["figures"] = {"export_seconds": 1.0, "export_latency_p50_ms": 2.0}
    document: dict[str, Any] = {"recipe": "mine", "outcome": "failed", "ended": "2026-01-01T00:00:00Z", "seconds": 9.0}
    document["stages"] = [ran]
    store = Store(str(tmp_path / "store"), tmp_path / "home")
    html = run_page(store, "20260101T000000Z-aaaaaa", document, [], None, None)
    assert "1 (25% of the stage)" in html and html.count("of the stage)") == 1
    document["stages"] = [{**ran, "action": "hit", "seconds": 0.0}]
    assert "of the stage)" not in run_page(store, "20260101T000000Z-aaaaaa", document, [], None, None)
