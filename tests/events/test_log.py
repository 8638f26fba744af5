"""The writer of an event log: what a kill, a full disk, another writer and a broken reader leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.disk_calls import disk_calls
from tests.helpers.small_disk import fill, small_disk
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import Interrupted, StoreError
from trnflow.tasks.events import (
    Event,
    EventLog,
    Reader,
    RunState,
    follow,
    is_written,
    log_file,
    read_log,
    retention,
    run_folder,
)
from trnflow.tasks.events import log as writer
from trnflow.tasks.system.redaction import add_secret

BEGUN: Meta = {
    "recipe": "demo", "kind": "run", "settings": {}, "options": {}, "store": "s", "host": {"name": "here"}, "checkout": None,
}  # fmt: skip
ENDED: Meta = {
    "action": "ran", "key": "k", "artifact": "sha256:1", "seconds": 1.0, "metrics": {}, "figures": {}, "facts": {}, "why": "",
}  # fmt: skip
TRAIN: Meta = {"key": "k", "attempt": "r-train-1", "settings": {"epochs": 1}}


def lines(home: Path, run: str = "r") -> list[Meta]:
    return [json.loads(line) for line in log_file(home, run).read_text().splitlines()]


def ended(log: EventLog, stage: str = "train", **fields: object) -> None:
    log.write("stage_ended", stage=stage, **(ENDED | fields))


class Ear(Reader):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def read(self, event: Event, state: RunState) -> None:
        self.events.append(event)


class Broken(Reader):
    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "stage_begun":
            raise ValueError("no terminal")


class Pruner(Broken):
    critical = True


def test_a_run_is_lines_that_readers_see_too(tmp_path: Path) -> None:
    ear = Ear()
    log = EventLog(ear)
    with log.writing(tmp_path, "r", **BEGUN):
        emit = log.stage("train", **TRAIN)
        emit({"progress": {"done": 1, "total": 4, "unit": "steps", "loss": 0.5}})
        emit({"metrics": {"step": 1, "time": 1795519501.25, "values": {"loss": float("nan")}}})
        emit({"figures": {"steps": 4}, "warn": "a row was dropped"})
        ended(log)
        assert is_written(log_file(tmp_path, "r"))
    found = lines(tmp_path)
    assert [one["event"] for one in found] == [
        "run_begun", "stage_begun", "progress", "metrics", "figures", "note", "stage_ended", "run_ended",
    ]  # fmt: skip
    assert [one["n"] for one in found] == list(range(8)) == [one["n"] for one in ear.events]
    assert found[2] == {
        "n": 2, "time": found[2]["time"], "event": "progress", "stage": "train", "done": 1, "total": 4, "unit": "steps",
        "values": {"loss": 0.5},
    }  # fmt: skip
    assert (found[3]["time"], found[3]["values"]) == (1795519501.25, {"loss": "NaN"}), "JSON has no NaN"
    assert found[7]["outcome"] == "completed" and found[7]["lost"] == 0
    assert log_file(tmp_path, "r").stat().st_mode & 0o777 == 0o600
    assert not is_written(log_file(tmp_path, "r"))
    state = read_log(log_file(tmp_path, "r"))
    assert state.outcome == "completed" and state.stages["train"].figures == {}
    assert repr(state.stages["train"].values["loss"]) == "nan"


def test_a_run_inside_a_run_is_part_of_its_log(tmp_path: Path) -> None:
    log = EventLog()
    with log.writing(tmp_path, "outer", **BEGUN | {"kind": "retrain"}):
        with log.writing(tmp_path, "inner", **BEGUN):
            log.note("trains")
        log.note("judges")
    assert [one["event"] for one in lines(tmp_path, "outer")] == ["run_begun", "note", "note", "run_ended"]
    assert not run_folder(tmp_path, "inner").exists()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(StoreError("gone"), "failed"), (Interrupted("stopped"), "cancelled"), (KeyboardInterrupt(), "cancelled")],
)
def test_the_last_line_says_how_a_run_ended(error: BaseException, outcome: str, tmp_path: Path) -> None:
    with pytest.raises(type(error)), EventLog().writing(tmp_path, "r", **BEGUN):
        raise error
    last = lines(tmp_path)[-1]
    assert (last["outcome"], last["error"]["type"]) == (outcome, type(error).__name__)


def test_secrets_are_hidden_and_long_texts_cut_but_settings_are_whole(tmp_path: Path) -> None:
    add_secret("hunter2-is-a-secret")
    log, long = EventLog(), "x" * 5000
    with log.writing(tmp_path, "r", **BEGUN | {"settings": {"format": {"template": long}}}):
        log.note(f"could not log in with hunter2-is-a-secret {long}")
    begun, note, _ = lines(tmp_path)
    assert begun["settings"]["format"]["template"] == long
    assert note["text"].startswith("could not log in with *** x") and len(note["text"]) == writer.TEXT_LENGTH


def test_a_reader_that_fails_is_left_out_and_a_critical_one_stops_the_stage(tmp_path: Path) -> None:
    ear = Ear()
    log = EventLog(Broken(), ear)
    log.stage("train", **TRAIN)
    log.stage("train", **TRAIN)
    assert [one["event"] for one in ear.events] == ["note", "stage_begun", "stage_begun"]
    assert ear.events[0]["event"] == "note" and "Broken shows no more of this run: ValueError" in ear.events[0]["text"]
    with pytest.raises(ValueError, match="no terminal"), EventLog(Pruner()).writing(tmp_path, "r", **BEGUN) as log:
        log.stage("train", **TRAIN)
    assert [one["event"] for one in lines(tmp_path)] == ["run_begun", "stage_begun", "run_ended"]


def test_progress_is_a_line_a_second_and_the_last_of_a_count_always(tmp_path: Path) -> None:
    log = EventLog()
    with log.writing(tmp_path, "r", **BEGUN):
        emit = log.stage("train", **TRAIN)
        for step in range(1, 101):
            emit({"progress": {"done": step, "total": 100, "unit": "steps"}})
        assert log.state.stages["train"].done == 100
    counted = [one["done"] for one in lines(tmp_path) if one["event"] == "progress"]
    assert counted[0] == 1 and counted[-1] == 100 and len(counted) < 10


def test_a_large_log_gets_no_progress_then_half_of_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "NO_PROGRESS_BYTES", 2_000)
    monkeypatch.setattr(writer, "FEW_METRICS_BYTES", 4_000)
    log = EventLog()
    with log.writing(tmp_path, "r", **BEGUN):
        emit = log.stage("train", **TRAIN)
        for step in range(200):
            emit({"progress": {"done": step, "total": step, "unit": f"steps {step}"}})
            emit({"metrics": {"step": step, "time": 0.0, "values": {"loss": 1.0}}})
    found = lines(tmp_path)
    counted = [one for one in found if one["event"] == "progress"]
    steps = [one["step"] for one in found if one["event"] == "metrics"]
    assert 0 < len(counted) < 15
    assert steps[:5] == [0, 1, 2, 3, 4] and steps[-3:] == [195, 197, 199]
    assert [one["n"] for one in found] == list(range(len(found))), "what is left out on purpose leaves no gap"


def test_two_writers_of_one_log_are_refused(tmp_path: Path) -> None:
    with EventLog().writing(tmp_path, "r", **BEGUN):
        with pytest.raises(StoreError, match=r"another process writes the event log .*events\.jsonl"):
            EventLog().writing(tmp_path, "r", **BEGUN).__enter__()
        assert is_written(log_file(tmp_path, "r"))
    assert [one["event"] for one in lines(tmp_path)] == ["run_begun", "run_ended"]


WRITES = f"""
import sys
from pathlib import Path
from trnflow.tasks.events import EventLog
log = EventLog()
with log.writing(Path(sys.argv[1]), "r", **{BEGUN!r}):
    emit = log.stage("train", **{TRAIN!r})
    print("begun", flush=True)
    for step in range(10**9):
        emit({{"metrics": {{"step": step, "time": 0.0, "values": {{"loss": 1.0, "speed": 2.0}}}}}})
"""


def test_a_killed_run_leaves_whole_lines_and_is_seen_as_killed(tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path)], stdout=subprocess.PIPE)
    assert run.stdout is not None and run.stdout.readline() == b"begun\n"
    file = log_file(tmp_path, "r")
    while file.stat().st_size < 100_000:
        assert run.poll() is None
    assert read_log(file).outcome == "running"
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    with file.open("ab") as handle:  # as a machine that loses power may leave it
        handle.write(b'{"n": 9, "ti')
    state = read_log(file)
    assert (state.outcome, state.skipped) == ("killed", 0)
    assert state.stages["train"].action == "running"
    assert b'"n": 9, "ti' in file.read_bytes(), "readers change nothing"


def test_a_line_that_a_crash_has_torn_takes_no_later_one_with_it(tmp_path: Path) -> None:
    (file := log_file(tmp_path, "r")).parent.mkdir(parents=True)
    file.write_bytes(b'{"n": 9, "ti')
    log = EventLog()
    with log.writing(tmp_path, "r", **BEGUN):
        log.note("it goes on")
    state = read_log(file)
    assert (state.run, state.outcome, state.skipped, log.lost) == ("r", "completed", 1, 0)


ENDS = f"""
import sys
from pathlib import Path
from trnflow.tasks.events import EventLog
log = EventLog()
with log.writing(Path(sys.argv[1]), "r", **{BEGUN!r}):
    log.stage("train", **{TRAIN!r})
    log.write("stage_ended", stage="train", **{ENDED!r})
    Path(sys.argv[2]).write_text("the next stage begins")
"""


def test_the_end_of_a_stage_is_on_the_disk_before_anything_follows(tmp_path: Path) -> None:
    file, following = str(log_file(tmp_path, "r")), str(tmp_path / "next")
    calls = [call.what for call in disk_calls(ENDS, tmp_path, tmp_path, following) if call.path in (file, following)]
    assert calls == ["write", "write", "write", "sync", "write", "write"], (
        "begun, stage, its end, synced; next, run's end"
    )


def test_a_full_disk_costs_lines_and_not_the_run(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        ear = Ear()
        log = EventLog(ear)
        with log.writing(disk, "r", **BEGUN):
            emit = log.stage("train", **TRAIN)
            ballast = fill(disk, leave=4096)
            for step in range(200):
                emit({"metrics": {"step": step, "time": 0.0, "values": {"loss": 1.0}}})
            assert log.lost > 100 and log.state.stages["train"].values == {"loss": 1.0}
            ballast.unlink()
            ended(log)
        state = read_log(log_file(disk, "r"))
        assert state.outcome == "completed" and state.stages["train"].action == "ran"
        assert state.lost == log.lost and state.skipped <= 1, "at most one line was torn"
        events, _ = follow(log_file(disk, "r"))
        missing = events[-1]["n"] + 1 - sum(one["event"] != "skipped" for one in events)
        assert missing == log.lost, "a gap in the numbers says how many lines are missing"
        assert len(ear.events) == 204


def test_a_home_that_can_not_be_written_costs_the_log_alone(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file in the way")
    ear = Ear()
    with EventLog(ear).writing(tmp_path, "r", **BEGUN) as log:
        ended(log)
    assert [one["event"] for one in ear.events] == ["run_begun", "stage_ended", "run_ended"] and log.lost == 3


def test_the_oldest_logs_go_when_all_take_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "KEPT_RUNS", 3)
    monkeypatch.setattr(retention, "KEPT_BYTES", 30_000)
    for number in range(10):
        with EventLog().writing(tmp_path, f"run-{number}", **BEGUN | {"parent": "s" if number in (6, 7, 8) else None}):
            (run_folder(tmp_path, f"run-{number}") / "a.log").write_bytes(bytes(10_000))
    assert len(list((tmp_path / "runs").glob("run-*"))) == 10, "a look an hour"
    os.utime(tmp_path / "runs" / retention.PRUNED, (0, 0))
    unsent = retention.unsent_file(tmp_path, "run-1")
    unsent.parent.mkdir()
    unsent.write_text("{}")
    with EventLog().writing(tmp_path, "run-2", **BEGUN):  # an old one that is written
        retention.prune_logs(tmp_path)
    left = {path.name for path in (tmp_path / "runs").glob("run-*")}
    assert left == {f"run-{number}" for number in (1, 2, 5, 6, 7, 8, 9)}, "trials of a sweep count as one"
