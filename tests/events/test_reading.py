"""Followers of an event log: whatever stands in it, each event once."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.events import Event, EventLog, RunState, fold, follow, log_file, read_log, reading

BEGUN: Meta = {
    "recipe": "demo",
    "kind": "run",
    "settings": {},
    "options": {},
    "store": "s",
    "host": {},
    "checkout": None,
}


def all_events(file: Path) -> list[Event]:
    found: list[Event] = []
    offset, before = 0, -1
    while offset != before:
        before = offset
        events, offset = follow(file, offset)
        found += events
    return found


def test_a_foreign_or_torn_line_is_skipped(tmp_path: Path) -> None:
    with EventLog().writing(tmp_path, "r", **BEGUN) as log:
        file = log_file(tmp_path, "r")
        with file.open("ab") as handle:
            handle.write(b"Traceback (most recent call last):\n[1, 2]\n\n\xff\xfe\n")
            handle.write(b'{"n": 3, "time": 1.0, "event": "metrics", "stage": "train"}\n')
            handle.write(b'{"n": 3, "time": "now", "event": "repair", "digest": "sha256:1"}\n')
        log.note("goes on")
    assert [one["event"] for one in all_events(file)] == ["run_begun", *["skipped"] * 5, "note", "run_ended"]
    assert read_log(file).skipped == 5


def test_events_of_a_later_version_are_passed_over_and_a_later_format_is_refused(tmp_path: Path) -> None:
    with EventLog().writing(tmp_path, "r", **BEGUN) as log:
        log.write("moon_rose", height=3)
    file = log_file(tmp_path, "r")
    assert (read_log(file).outcome, read_log(file).skipped) == ("completed", 0)
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 2'))
    with pytest.raises(ConfigError, match="is an event log in format 2, and this version of trnflow reads up to 1"):
        read_log(file)


JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(string.printable),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = some.sampled_from(
    ("run_begun", "planned", "stage_begun", "progress", "metrics", "stage_ended", "run_ended", "x")
)
FIELDS = (
    "n",
    "time",
    "stage",
    "schema",
    "run",
    "stages",
    "values",
    "done",
    "total",
    "unit",
    "step",
    "outcome",
    "error",
)


@given(name=NAMES, fields=some.dictionaries(some.sampled_from(FIELDS), JSON))
def test_no_line_breaks_a_follower(name: str, fields: Meta, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("log") / "events.jsonl"
    file.write_text(json.dumps({"event": name, **fields}) + "\n", encoding="utf-8")
    try:
        read_log(file)
    except ConfigError:
        assert name == "run_begun" and fields["schema"] > 1


@given(cuts=some.lists(some.integers(0, 3000), max_size=8), size=some.integers(1, 400))
def test_a_follower_gets_each_event_once_however_the_file_grows(
    cuts: list[int], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("log")
    with EventLog().writing(folder, "r", **BEGUN) as log:
        for number in range(20):
            log.note(f"number {number} of ühhh" * (number % 5))
            log.write("repair", digest=f"sha256:{number}")
    whole = log_file(folder, "r").read_bytes()
    file, found, offset = folder / "grows.jsonl", [], 0
    reading.READ_BYTES, usual = size, reading.READ_BYTES
    try:
        for cut in [*sorted(cuts), len(whole)]:
            file.write_bytes(whole[:cut])
            before = -1
            while offset != before:
                before = offset
                events, offset = follow(file, offset)
                found += events
    finally:
        reading.READ_BYTES = usual
    assert offset == len(whole)
    assert found == [json.loads(line) for line in whole.splitlines()]


REPORTS = some.lists(
    some.one_of(
        some.builds(
            lambda done, total, unit: {"progress": {"done": done, "total": total, "unit": unit}},
            some.integers(0, 50), some.integers(1, 50), some.sampled_from(("rows", "steps")),
        ),
        some.builds(
            lambda step, values: {"metrics": {"step": step, "time": float(step), "values": values}},
            some.integers(0, 9), some.dictionaries(some.sampled_from(("loss", "eval_loss")), some.floats()),
        ),
        some.builds(lambda values: {"figures": values}, some.dictionaries(some.text("ab", max_size=2), some.floats())),
        some.builds(lambda text: {"info": text}, some.text(max_size=20)),
    ),
    max_size=12,
)  # fmt: skip


@given(reports=REPORTS)
def test_the_fold_of_the_file_is_the_state_that_the_writer_had(
    reports: list[Meta], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("log")
    with EventLog().writing(folder, "r", price_per_hour=3.6, **BEGUN) as log:
        emit = log.stage("train", key="k", attempt="r-train-1", settings={})
        for report in reports:
            emit(report)
        emit({"progress": {"done": 3, "total": 3, "unit": "epochs"}})  # the last of a count is always written
    assert shown(fold(all_events(log_file(folder, "r")))) == shown(log.state)


def shown(state: RunState) -> str:
    """The state without what passes between two lines of progress: NaN is not equal to itself."""
    return repr([(one.values, one.figures, one.done, one.total, one.unit) for one in state.stages.values()])


def plan(**expected: float | None) -> Any:
    stages = [{"stage": name, "action": "run", "seconds": seconds} for name, seconds in expected.items()]
    return {"n": 0, "time": 0.0, "event": "planned", "stages": stages}


def at(time: float, event: str, **fields: Any) -> Any:
    known = {"key": "k", "attempt": "a", "settings": {}, "stage": "train"}
    return {"n": 0, "time": time, "event": event, **known, **fields}


def test_the_share_of_a_run_weighs_stages_by_their_expected_seconds() -> None:
    state = fold([plan(load_data=10.0, train=80.0, evaluate_model=None)])
    assert state.share == 0.0
    done = {"key": "k", "artifact": "d", "seconds": 9.0, "metrics": {}, "figures": {}, "facts": {}, "why": ""}
    fold([at(9.0, "stage_ended", action="ran", **{**done}) | {"stage": "load_data"}], state)
    assert state.share == pytest.approx(10 / 135)
    fold([at(10.0, "stage_begun"), at(20.0, "progress", done=1, total=4, unit="steps", values={})], state)
    assert state.stages["train"].action == "running" and state.share == pytest.approx((10 + 20) / 135)
    assert fold([plan()]).share == 1.0, "nothing is due"


def test_the_record_has_the_stages_that_ended_those_that_hit_too() -> None:
    begun = {"n": 0, "time": 0.0, "event": "run_begun", "schema": 1, "run": "r", "parent": None, "price_per_hour": 0.0}
    options = {"options": {"until": None, "force": []}}
    state = fold([begun | BEGUN | options, plan(load_data=1.0, train=1.0, evaluate_model=1.0)])  # type: ignore[list-item]
    done = {"key": "k", "seconds": 9.0, "metrics": {}, "figures": {}, "facts": {}, "why": ""}
    for stage, action in (("load_data", "hit"), ("train", "ran")):
        fold([at(1.0, "stage_ended", action=action, artifact=f"of {stage}", **done) | {"stage": stage}], state)
    fold([at(2.0, "stage_begun") | {"stage": "evaluate_model"}], state)
    found = [(one["stage"], one["action"], one["artifact"]) for one in state.record()["stages"]]
    assert found == [("load_data", "hit", "of load_data"), ("train", "ran", "of train")]


def test_a_stage_that_counts_something_else_is_timed_anew() -> None:
    state = fold([at(0.0, "stage_begun"), at(0.0, "progress", done=1, total=100, unit="MB pulled", values={})])
    fold([at(1000.0, "progress", done=1, total=3, unit="steps", values={})], state)
    assert state.stages["train"].eta(1000.0) is None
    fold([at(1010.0, "progress", done=2, total=3, unit="steps", values={})], state)
    assert state.stages["train"].eta(1010.0) == 10


@pytest.mark.parametrize(("first", "eta"), [(0, 18.0), (40, 10.0)])
def test_the_time_that_is_left_follows_the_pace_since_the_first_count(first: int, eta: float) -> None:
    state = fold([at(0.0, "stage_begun"), at(0.0, "progress", done=first, total=100, unit="steps", values={})])
    assert state.stages["train"].counted(0.0)["eta"] is None
    fold([at(2.0, "progress", done=first + 10, total=100, unit="steps", values={})], state)
    assert state.stages["train"].counted(2.0) == {"step": first + 10, "of": 100, "unit": "steps", "eta": eta}


def test_a_run_costs_its_hours_also_while_it_runs() -> None:
    begun = {
        "n": 0,
        "time": 100.0,
        "event": "run_begun",
        "schema": 1,
        "run": "r",
        "parent": None,
        "price_per_hour": 3.6,
    }
    state = fold([begun | BEGUN])  # type: ignore[list-item]
    assert state.dollars(1100.0) == pytest.approx(1.0)
    assert state.dollars(99.5) == 0.0, "a clock that was set back earns nothing"


def test_a_stage_takes_no_time_before_it_begins() -> None:
    state = fold([plan(train=80.0)])
    assert state.stages["train"].elapsed(9.0) == 0.0
    fold([at(10.0, "stage_begun")], state)
    assert [state.stages["train"].elapsed(now) for now in (9.0, 12.5)] == [0.0, 2.5]
