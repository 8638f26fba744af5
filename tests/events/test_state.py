"""A stage's time left, and the end of a run that is followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.stores import new_store
from trnflow.tasks.events import following
from trnflow.tasks.events.event_types import checked_event
from trnflow.tasks.events.following import Follower
from trnflow.tasks.events.retention import log_file
from trnflow.tasks.events.state import RunState, StageState


def counted(stage: StageState, time: float, done: int, total: int, unit: str = "rows") -> float | None:
    event: Any = {
        "event": "progress",
        "stage": "s",
        "time": time,
        "done": done,
        "total": total,
        "unit": unit,
        "values": {},
    }
    stage.count(event)
    return stage.eta(time)


def test_the_time_left_is_that_of_the_present_count() -> None:
    stage = StageState("s")
    assert counted(stage, 0.0, 0, 10) is None
    assert counted(stage, 10.0, 5, 10) == 10.0
    assert stage.eta(14.0) == 6.0
    assert counted(stage, 20.0, 0, 40) is None, "it begins to count something else"
    assert counted(stage, 24.0, 20, 40) == 4.0
    assert counted(stage, 30.0, 20, 40, "lengths") is None


def test_the_share_and_the_price_of_a_run() -> None:
    run = RunState(price_per_hour=3.6, begun=100.0)
    run.stages = {
        "a": StageState("a", "ran", expected=30.0, due=True),
        "b": StageState("b", "running", expected=10.0, due=True, done=1, total=4),
        "c": StageState("c", "run", due=True),
        "d": StageState("d", "hit"),
    }
    assert run.share == pytest.approx((30 + 10 / 4) / (30 + 10 + 20)), "c is expected to take as long as the others do"
    run.last = 200.0
    assert (run.dollars(), run.dollars(1100.0)) == (pytest.approx(0.1), pytest.approx(1.0))


def test_the_end_of_a_run_that_ends_between_two_looks_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end: Any = {
        "event": "run_ended", "time": 5.0, "outcome": "completed", "error": None, "seconds": 1.0, "dollars": 0.0, "lost": 0,
        "notes": [],
    }  # fmt: skip
    written: list[Any] = []

    def is_written(file: Path) -> bool:
        written.append(end)  # it writes its end just now, and is gone
        return False

    monkeypatch.setattr(following, "is_written", is_written)
    monkeypatch.setattr(following, "follow", lambda file, offset: (written[offset:1], min(len(written), 1)))
    store = new_store(tmp_path)
    log = log_file(store.home, "r")
    log.parent.mkdir(parents=True)
    log.touch()
    follower = Follower(store, "r")
    assert follower.look() == [end] and not follower.is_over
    assert follower.look() == [] and follower.is_over and follower.outcome == "completed"


def test_the_end_of_a_stage_counts_where_its_seconds_are_not_known() -> None:
    ended: Any = {
        "n": 3, "time": 5.0, "event": "stage_ended", "stage": "s", "action": "hit", "why": "", "key": "k", "artifact": "d",
        "seconds": None, "metrics": {}, "figures": {}, "facts": {},
    }  # fmt: skip
    assert checked_event(ended) == ended
    assert checked_event({**ended, "seconds": "long"}) is None
    assert checked_event({name: value for name, value in ended.items() if name != "facts"}) is None


def test_what_a_plan_has_nothing_to_do_for_is_not_due() -> None:
    actions = ("run", "maybe", "hit", "skip")
    planned: Any = {
        "event": "planned",
        "time": 1.0,
        "stages": [{"stage": action, "action": action} for action in actions],
    }
    state = RunState()
    state.take(planned)
    assert {stage.stage: stage.due for stage in state.stages.values()} == {
        "run": True, "maybe": True, "hit": False, "skip": False,
    }  # fmt: skip
