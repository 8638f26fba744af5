"""A stage in a process of its own: what comes back, and how failures are told."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.launch import stages
from tests.launch.processes import gone, send, wait_for
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.errors import DataError, Interrupted, MachineError, ProcessFailed, Terminated
from trnflow.tasks.launch import local
from trnflow.tasks.launch.call import Call
from trnflow.tasks.launch.local import Emit, run_call
from trnflow.tasks.system.redaction import add_secret

STARTED = pytest.param((), id="started")
FORKED = pytest.param(("json",), id="forked")
both = pytest.mark.parametrize("call_for", [STARTED, FORKED], indirect=True)


@pytest.fixture(params=[pytest.param((), id="started", marks=pytest.mark.nightly), FORKED])
def call_for(request):
    """Makes calls of processes that are started anew, or forked from a warm parent; in most tests this is all the same."""

    def call(folder: Path, function, how: str = "", **more) -> Call:
        config = stages.NapConfig(how=how, pids=folder / "pids.json")
        inputs = more.pop("inputs", {})
        more["preload"] = request.param
        return Call.of(function, config, inputs, folder / "out", **more)

    return call


@both
def test_inputs_environment_and_metadata_arrive(call_for, tmp_path, capfd):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rows.txt").write_text("rows")
    inputs = {
        "rows": Input(tmp_path / "in", "rows", {}, "sha256:aa"),
        "model": Source("model", {"commit": "abc"}, {"folder": "here"}),
        "graphs": Input(tmp_path, "graphs", {}, "sha256:bb"),
    }
    call = call_for(tmp_path, stages.describe, "quick", inputs=inputs, environ={"TRNFLOW_TEST_FLAG": "on"})
    meta = run_call(call, lambda event: None)
    assert meta.pop("pid") != os.getpid()
    assert meta == {
        "how": "quick", "model": {"commit": "abc"}, "where": {"folder": "here"}, "graphs": "sha256:bb", "flag": "on",
    }  # fmt: skip
    assert (tmp_path / "out/made.txt").read_text() == "ROWS"
    assert capfd.readouterr() == ("", "")
    assert call.log.read_text() == "to stdout\nto stderr\n"


def test_the_log_has_each_line_without_secrets_and_the_call_is_gone_when_the_stage_begins(call_for, tmp_path):
    add_secret("t0ken-of-test-local")
    call = call_for(tmp_path, stages.tell, "t0ken-of-test-local")
    beside = run_call(call, lambda event: None)["beside"]
    assert call.log.read_text() == "my token is ***\nand the last line"
    assert call.file.name not in beside and call.log.name in beside, "its settings may hold a URL with credentials"


@both
def test_events_arrive_in_order_while_the_stage_runs(call_for, tmp_path):
    heard = []

    def emit(event):
        heard.append(event)
        if event.get("progress", {}).get("done") == 1:  # only now may the stage go on
            (tmp_path / "go").touch()

    meta = run_call(call_for(tmp_path, stages.talk, str(tmp_path / "go")), emit)
    assert meta == {"metrics": {"train_loss": 0.01}}
    assert [event["metrics"]["step"] for event in heard if "metrics" in event] == list(range(100))
    assert [next(iter(event)) for event in heard[100:]] == ["warn", "progress", "progress", "figures"]
    assert heard[100]["warn"] == "w" * 200_000


def test_the_stages_own_error_comes_back_with_its_traceback(call_for, tmp_path):
    with pytest.raises(DataError) as caught:
        run_call(call_for(tmp_path, stages.fail, "data"), lambda event: None)
    assert caught.value.to_json() == {
        "type": "DataError",
        "message": "rows.csv, row 3: no label",
        "fix": "give every row a label",
    }
    assert "stages.py" in caught.value.details and "Traceback" in caught.value.details


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("bug", "ZeroDivisionError: division by zero"),
        ("not json", "TypeError"),
        ("nan", "ValueError: Out of range float"),
    ],
)
def test_an_unforeseen_exception_is_named_and_its_log_too(call_for, tmp_path, how, said):
    call = call_for(tmp_path, stages.fail, how)
    with pytest.raises(ProcessFailed, match=f"fail failed with {said}") as caught:
        run_call(call, lambda event: None)
    assert str(call.log) in caught.value.fix
    assert "Traceback" in caught.value.details


def test_an_error_of_another_process_shows_no_secret_of_its_environment(call_for, tmp_path):
    environ = {"TRNFLOW_TEST_FLAG": "hunter2-of-the-environment"}
    call = call_for(tmp_path, stages.fail, "secret", environ=environ, secret=("TRNFLOW_TEST_FLAG",))
    with pytest.raises(ProcessFailed, match=r"ValueError: no login with \*\*\*\.") as caught:
        run_call(call, lambda event: None)
    assert "Traceback" in caught.value.details and "hunter2" not in caught.value.details


@both
@pytest.mark.parametrize(
    ("how", "said"), [("exit", "exit code 7"), ("SIGKILL", "signal SIGKILL"), ("SIGSEGV", "signal SIGSEGV")]
)
def test_a_silent_death_is_told_with_the_end_of_the_log(call_for, tmp_path, how, said):
    call = call_for(tmp_path, stages.fail, how)
    with pytest.raises(MachineError if how == "SIGKILL" else ProcessFailed, match=said) as caught:
        run_call(call, lambda event: None)
    assert "last words" in caught.value.message
    assert str(call.log) in caught.value.fix


def test_an_old_result_is_never_taken_for_a_new_one(call_for, tmp_path):
    call = call_for(tmp_path, stages.fail, "exit")
    call.result.write_text(json.dumps({"meta": {"old": 1}}))
    with pytest.raises(ProcessFailed):
        run_call(call, lambda event: None)


def test_what_a_stage_leaves_behind_is_ended(call_for, tmp_path):
    meta = run_call(call_for(tmp_path, stages.leave, grace_seconds=0.2), lambda event: None)
    assert gone([meta["left"]])


def test_a_failing_listener_ends_the_stage_and_is_not_hidden(call_for, tmp_path):
    def emit(event):
        raise ValueError("listener")

    with pytest.raises(ValueError, match="listener"):
        run_call(call_for(tmp_path, stages.sleep, "stubborn", grace_seconds=0.5), emit)
    assert gone(json.loads((tmp_path / "pids.json").read_text()))


def in_thread(
    call: Call, grace: float, emit: Emit = lambda event: None
) -> tuple[threading.Thread, list[BaseException]]:
    """run_call in a thread, as Prefect runs a task; its exception lands in the list."""
    caught: list[BaseException] = []

    def work():
        try:
            run_call(replace(call, grace_seconds=grace), emit)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, caught


def test_a_call_in_a_thread_is_interrupted_and_saves(call_for, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "STOP_SECONDS", 0.0)  # of those that save nothing
    said = threading.Event()  # after it was known that the stage saves
    thread, caught = in_thread(call_for(tmp_path, stages.save, str(tmp_path / "saved")), 30, lambda event: said.set())
    pids = wait_for(tmp_path / "pids.json", json.loads)
    assert said.wait(60)
    send(thread, KeyboardInterrupt)
    thread.join()
    assert isinstance(caught[0], Interrupted) and "step 5" in caught[0].message
    assert (tmp_path / "saved").read_text() == "checkpoint"
    assert gone(pids)


@both
def test_sigterm_to_every_process_twice_is_one_wish_to_stop(call_for, tmp_path):
    thread, caught = in_thread(call_for(tmp_path, stages.save, str(tmp_path / "saved")), 30)
    pids = wait_for(tmp_path / "pids.json", json.loads)
    for error in (Terminated, Terminated, KeyboardInterrupt):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        send(thread, error)
        time.sleep(0.05)
    thread.join()
    assert isinstance(caught[0], Interrupted) and "step 5" in caught[0].message
    assert (tmp_path / "saved").read_text() == "checkpoint"
    assert gone(pids)


def test_a_stage_that_begins_to_save_when_it_is_stopped_has_its_grace(call_for, tmp_path, monkeypatch):
    guarded = local.Guarded(call_for(tmp_path, stages.save, seconds=60))
    guarded._guard = SimpleNamespace(send_signal=lambda number: None)
    late = guarded._deadline
    monkeypatch.setattr(guarded, "_lines", lambda: iter([b'{"saves": true}']))
    guarded.follow(pytest.fail)
    assert guarded._deadline == late < math.inf, "of a stage that was not stopped its own limit holds"
    guarded._saves = False
    guarded.interrupt()
    assert guarded._deadline < late
    guarded.follow(pytest.fail)
    assert guarded._deadline == math.inf


def test_an_exception_sent_into_the_thread_ends_the_call(call_for, tmp_path):
    """As Prefect cancels a task that runs in a thread."""

    class Cancelled(BaseException):
        pass

    thread, caught = in_thread(call_for(tmp_path, stages.save, str(tmp_path / "saved")), 30)
    pids = wait_for(tmp_path / "pids.json", json.loads)
    send(thread, Cancelled)
    thread.join()
    assert isinstance(caught[0], Cancelled)
    assert (tmp_path / "saved").exists()
    assert gone(pids)


def test_a_deaf_stage_is_killed_at_once_when_asked_twice(call_for, tmp_path):
    thread, caught = in_thread(call_for(tmp_path, stages.deaf), 600)
    pids = wait_for(tmp_path / "pids.json", json.loads)
    send(thread, KeyboardInterrupt)
    time.sleep(0.5)  # until it waits for the stage to save
    send(thread, KeyboardInterrupt)
    thread.join()
    assert isinstance(caught[0], Interrupted)
    assert gone(pids)


@both
def test_a_killed_guard_takes_the_worker_with_it(call_for, tmp_path):
    thread, caught = in_thread(call_for(tmp_path, stages.sleep, "stubborn"), 600)
    pids = wait_for(tmp_path / "pids.json", json.loads)
    os.kill(pids[1], signal.SIGKILL)
    thread.join()
    assert isinstance(caught[0], ProcessFailed) and "guard" in caught[0].message
    assert gone(pids)


@pytest.mark.parametrize(
    ("free", "status", "held", "error", "said"),
    [
        (1 << 30, None, 0, ProcessFailed, "the guard of empty was killed"),
        (1 << 30, 7, 0, ProcessFailed, r"died without a word \(exit code 7\)"),
        (1 << 30, -9, 5 << 30, MachineError, "signal SIGKILL; so the kernel ends processes where no memory is left"),
        (1 << 30, -9, 9 << 30, MachineError, "empty took 9 GiB of memory, more than the 8 GiB it may take"),
        (1 << 15, 7, 0, OSError, "No space left on device"),  # nothing could be written of the stage's own error
    ],
)
def test_why_a_process_left_no_result(call_for, tmp_path, monkeypatch, free, status, held, error, said):
    guarded = local.Guarded(call_for(tmp_path, stages.empty, memory_gib=8.0))
    guarded._status, guarded._held = status, held
    guarded._memory = 8 << 30
    monkeypatch.setattr(os, "statvfs", lambda place: SimpleNamespace(f_bavail=free // 4096, f_frsize=4096))
    with pytest.raises(error, match=said):
        guarded.result()
