"""The parts of the week and of the chaos that judge: a schedule's gaps, a firing's outcome, the rows of each day."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.acts import ACTS, WITH_POSTGRES, plan
from tests.chaos.data import NAMES, rows, write_project
from tests.chaos.ledger import BUSY, JUDGED, faults, firing, judged, sequence
from tests.chaos.run import keep
from tests.chaos.truth import untrue
from tests.chaos.week import RECIPE, days
from trnflow.flows.recipes.recipe import load

BEGIN = datetime(2026, 11, 2, 3, tzinfo=UTC)


def flow_run(second: int, name: str = "Unchanged", state: str = "COMPLETED") -> dict[str, Any]:
    due = (BEGIN + timedelta(seconds=second)).isoformat()
    return {
        "id": f"run-{second}", "state_type": state, "state_name": name,
        "expected_start_time": due, "start_time": due, "end_time": due,
    }  # fmt: skip


def event(outcome: str, why: str = "", run: str | None = None) -> list[dict[str, Any]]:
    told = {
        "why": why,
        "run": run,
        "changed": outcome != "unchanged",
        "promoted": outcome == "promoted",
        "stopped": False,
    }
    return [{"event": f"trnflow.retrain.{outcome}", "payload": told}]


def test_a_lost_a_double_and_an_endless_run_are_faults() -> None:
    assert not faults([flow_run(0), flow_run(30), flow_run(60)], 30)
    assert [text[:5] for text in faults([flow_run(0), flow_run(60), flow_run(60)], 30)] == ["60 s,", "0 s, "]
    assert faults([flow_run(0), flow_run(30, "Running", "RUNNING")], 30) == [
        "run-30 (due 2026-11-02T03:00:30+00:00): Running"
    ]


def test_a_firing_is_what_both_prefect_and_the_event_say() -> None:
    busy = firing(1, flow_run(0), event("unchanged", "another retrain of week is under way: pid 1"))
    kept = [firing(n, flow_run(n, "Kept"), event("kept")) for n in (3, 2)]
    assert busy.outcome == BUSY and sequence([*kept, busy]) == "busy, kept x2"
    twice = firing(4, flow_run(4, "Kept"), [*event("promoted", run="one"), *event("kept", run="two")])
    assert twice.outcome == "kept" and judged([twice, busy]) == [("promoted", "one"), ("kept", "two")]
    with pytest.raises(AssertionError, match="Prefect says failed, the event says kept"):
        firing(1, flow_run(0, "Failed", "FAILED"), event("kept"))


def test_each_state_of_the_rows_that_is_judged_is_known_by_its_number_of_rows() -> None:
    counts = [
        len(one.splitlines()) for day in days() if day.outcome in JUDGED for one in (day.train, day.during) if one
    ]
    assert len({*counts}) == len(counts)
    assert rows(20).startswith(rows(19)) and rows(20) == rows(20)
    labels = [[json.loads(line)["label"] for line in rows(200, wrong=wrong).splitlines()] for wrong in (0.0, 1.0)]
    assert all(one != other for one, other in zip(*labels, strict=True))


def test_the_project_has_a_recipe_that_is_valid(tmp_path: Path) -> None:
    write_project(tmp_path / "house", RECIPE)
    recipe = load(str(tmp_path / "house" / NAMES.recipe))
    assert recipe.name == NAMES.name and recipe.checks[0].then == "stop"
    assert recipe.tracking.enabled and recipe.promote.margin == 0.2


def test_a_seed_repeats_its_acts_and_leaves_none_out() -> None:
    assert plan(3, 30) == plan(3, 30) and plan(3, 30)[:9] == plan(3, 9) != plan(4, 9)
    for acts in (ACTS, WITH_POSTGRES):
        assert {one.act.name for one in plan(3, len(acts), acts)} == {act.name for act in acts}
    assert {act.name for act in WITH_POSTGRES} - {act.name for act in ACTS} == {"kill PostgreSQL"}


def test_what_prefect_says_of_a_run_is_checked_against_its_event() -> None:
    ended = [run | {"state": {"message": None}} for run in (flow_run(0, "Kept"), flow_run(30, "Running", "RUNNING"))]
    assert untrue(ended[:1], {"run-0": event("kept")}) == []
    (first, second) = untrue(ended, {"run-0": event("failed")})
    assert first.endswith("is Kept, its event says failed: ") and second.endswith("is Running for ever")


def test_the_home_of_a_fault_is_kept_whatever_lies_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / "logs").mkdir(parents=True)
    (home / "logs/a.log").write_text("why")
    (home / "ballast").write_bytes(bytes(9))
    (home / "gone").symlink_to("nowhere")
    monkeypatch.chdir(home)
    for name in ("one.sock", "two"):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name)
    keep(home, tmp_path / "copy")
    assert {file.name for file in (tmp_path / "copy").rglob("*")} == {"logs", "a.log", "gone"}
