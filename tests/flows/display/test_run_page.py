"""The page of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trnflow.flows.display.run_page import _data, run_page, verdict_on
from trnflow.tasks.evaluation.curves import drawn
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger.entries import NOTHING, Entry, NewEntry, complete_entry


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


RUN, KEY = "20260101T000000Z-aaaaaa", "1" * 64


def curves_of(folder: Path, *events: dict[str, Any]) -> str:
    """The page of a run that trained under KEY, and whose log has these events."""
    store = Store(str(folder / "store"), folder / "home")
    store.write_attempt(KEY, f"{RUN}-train-1", {"stage": "train"})
    lines = [json.dumps({"n": n, "time": 0.0, "stage": "train", **event}) for n, event in enumerate(events)]
    store.backend.replace(f"logs/{RUN}/0.jsonl", "".join(f"{line}\n" for line in lines).encode())
    train = {"stage": "train", "action": "ran", "artifact": None, "why": "", "key": KEY, "seconds": 4.0, "metrics": {}}
    document: dict[str, Any] = {"recipe": "mine", "outcome": "failed", "ended": "2026-01-01T00:00:00Z", "seconds": 9.0}
    return run_page(store, RUN, {**document, "stages": [train]}, [], None, None)  # type: ignore[typeddict-item]


def test_curves_are_of_the_runs_own_training_and_leave_out_what_is_no_number(tmp_path: Path) -> None:
    def begun(key: str) -> dict[str, Any]:
        return {"event": "stage_begun", "key": key, "attempt": f"{RUN}-train-1", "settings": {}}

    def loss(step: int, value: float) -> dict[str, Any]:
        return {"event": "metrics", "step": step, "values": {"loss": value}}

    clean = [begun(KEY), loss(1, 2.5), loss(2, 2.0), loss(9, 1.5)]
    page = curves_of(tmp_path / "clean", *clean)
    assert "<polyline" in page and "2.5" in page and "1.5" in page
    others = [begun("2" * 64), loss(3, 77.0), *clean[:2], loss(4, float("nan")), *clean[2:], loss(5, float("inf"))]
    assert curves_of(tmp_path / "mixed", *others) == page


def test_a_runs_page_hides_secrets_of_its_notes(tmp_path: Path) -> None:
    document: dict[str, Any] = {"recipe": "mine", "outcome": "failed", "ended": "2026-01-01T00:00:00Z", "seconds": 9.0}
    document |= {"stages": [], "notes": ["https://ann:pa55word@rows.example/1 was slow"]}
    first = ["kept: https://ann:pa55word@rows.example/2 is as good"]
    store = Store(str(tmp_path / "store"), tmp_path / "home")
    html = run_page(store, RUN, document, first, None, None)  # type: ignore[arg-type]
    assert "rows.example/1 was slow" in html and "rows.example/2 is as good" in html and "pa55word" not in html


@pytest.mark.parametrize(("spent", "said"), [(0.125, "; budget spent 12.5%"), (0.0, "")])
def test_a_verdict_names_what_was_compared_on_which_rows_and_what_it_spent(spent: float, said: str) -> None:
    pair = {
        "metric": "accuracy", "challenger": 0.5, "champion": 0.75, "difference": -0.25, "low": -0.5, "high": 0.125,
        "rows": 40, "spent": spent,
    }  # fmt: skip
    entries: list[Entry] = []
    for new in (
        NewEntry(outcome="frozen", by="freeze", why="", frozen="f", created="2026-01-02T00:00:00+00:00"),
        NewEntry(outcome="promoted", by="promote", why="the first champion", champion="a", run="first"),
        NewEntry(outcome="kept", by="retrain", why="", champion="a", run=RUN, frozen="f", comparison=pair),
    ):
        entries.append(complete_entry("tiny", len(entries) + 1, entries[-1]["stands"] if entries else NOTHING, new))
    assert verdict_on(RUN, entries[::-1]) == (
        "kept: accuracy 0.5 against 0.75 of champion 1; difference -0.25, interval -0.5 to +0.125; 40 frozen rows of "
        f"2026-01-02{said}"
    )
    assert verdict_on("first", entries[::-1]) == "promoted: the first champion"
    assert verdict_on("another", entries[::-1]) is None


def test_the_counts_of_splits_stand_to_the_right(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), tmp_path / "home")
    (tmp_path / "rows").mkdir()
    meta: Any = {"splits": {"train": 1234}, "columns": ["text"], "text": ["text"], "labels": None, "metrics": {}}
    meta |= {"dropped": {"empty": 2}, "duplicates": 1, "leakage": {"train/test": 0}}
    rows = store.ingest(tmp_path / "rows", "rows", meta, cache=False).digest
    document: Any = {"stages": [{"stage": "load_data", "artifact": rows}]}
    found = _data(store, document)
    assert found["data"]["rows"] == [["train", "1,234", "", "", "", ""]]
    assert found["data"]["numbers"] == ["rows", "texts", "tokens", "too long", "chunks"]
    assert found["data_lines"] == ["Dropped by load_data: empty 2", "Duplicates: 1", "No row stands in two splits."]


def test_a_long_curve_ends_with_its_last_point() -> None:
    curve = drawn([(step, float(step)) for step in range(1, 1002)])
    assert (curve["first"], curve["last"], curve["high"]) == (1, 1001, "1001")
    assert 300 < len(curve["points"].split()) <= 401
