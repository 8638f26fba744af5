"""`trnflow status` and `trnflow logs` while a run is under way, and after it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.flows.cli.waiting_stage import WaitConfig, wait_for
from tests.helpers.command_line import Shell, opened
from tests.helpers.leases import write_dead_lease
from tests.helpers.runs import context, run_stage
from tests.helpers.waiting import wait_for as until
from trnflow.flows.cli.live.logs_command import Log
from trnflow.flows.cli.live.logs_command import _print_new as print_new
from trnflow.tasks.events import log_file
from trnflow.tasks.store import Store

RUN = "20260101T000000Z-abc123"
PATIENCE = 120.0


def test_a_run_is_watched_until_it_ends(tmp_path: Path) -> None:
    shell, store = opened(tmp_path)
    assert "nothing runs" in shell("status").stdout
    running = context(store, run=RUN, settings=["store.lease_ttl_seconds=3"])
    work = threading.Thread(target=lambda: run_stage(wait_for, WaitConfig(path=str(tmp_path / "go")), running))
    work.start()
    try:
        (one,) = until(lambda: [run for run in shell.json("status")["runs"] if run["step"]])
        assert one["step"] <= one["of"] == 100
        assert (one["run"], one["recipe"], one["stage"], one["unit"]) == (RUN, "toy", "wait_for", "looks")
        assert (one["host"], one["pid"]) == (socket.gethostname(), os.getpid())
        assert set(one) == {"run", "recipe", "stage", "step", "of", "unit", "eta", "host", "pid", "since"}
        until(lambda: "/100 looks" in shell("status").stdout)
        (listed,) = shell.json("runs")["runs"]
        assert listed["seconds"] > 0 and listed["step"] <= listed["of"] == 100
        assert {name: listed[name] for name in listed.keys() - {"seconds", "step", "of", "eta"}} == {
            "run": RUN, "recipe": "toy", "outcome": "running", "ended": None, "hit": None, "ran": None, "skip": None,
            "metrics": {}, "stage": "wait_for", "unit": "looks", "job": None,
        }  # fmt: skip
        assert "wait_for" in (line := shell("runs").stdout.splitlines()[-1]) and line.endswith("/100 looks")
        until(lambda: "a line of the stage" in shell("logs", "2026").stdout)
        following: list[str] = []
        reader = threading.Thread(target=lambda: following.append(Shell(tmp_path)("logs", RUN, "--follow").stdout))
        reader.start()
    finally:
        (tmp_path / "go").touch()
        work.join()
    store.write_run(RUN, {"run": RUN})
    reader.join(PATIENCE)
    assert following[0].splitlines() == ["== wait_for ==", "a line of the stage", "the last line"]
    assert shell.json("status")["runs"] == []
    assert [(one["run"], one["outcome"], one["stage"]) for one in shell.json("runs")["runs"]] == [(RUN, None, None)]
    (log,) = shell.json("logs", "last")["logs"]
    assert log == {"stage": "wait_for", "text": "a line of the stage\nthe last line\n"}
    assert "there is no run" in shell.error("logs", "1999", code=2)
    store.write_run("20260102T000000Z-000000", {"run": "20260102T000000Z-000000"})
    assert "there is no log of the run" in shell.error("logs", "last", code=2)


def test_a_preview_in_progress_has_a_status_and_a_log_and_is_no_run(tmp_path: Path) -> None:
    shell, store = opened(tmp_path)
    running = context(store, run=f"{RUN}-preview")
    running.kind = "preview"
    work = threading.Thread(target=lambda: run_stage(wait_for, WaitConfig(path=str(tmp_path / "go")), running))
    work.start()
    try:
        (one,) = until(lambda: shell.json("status")["runs"])
        assert one["run"] == f"{RUN}-preview"
        assert shell.json("runs")["runs"] == []
    finally:
        (tmp_path / "go").touch()
        work.join()
    assert "the last line" in shell("logs", "last").stdout


def test_a_dead_run_of_another_machine_is_not_shown_as_running(tmp_path: Path) -> None:
    shell, store = opened(tmp_path)
    attempt = f"{RUN}-train-1"
    store.write_attempt("1" * 64, attempt, {"stage": "train", "recipe": "toy"})
    write_dead_lease(store, "1" * 64, RUN, attempt)
    write_dead_lease(store, "2" * 64, "20270101T000000Z-abc123", "a retraining")  # newer, and no stage
    log = tmp_path / ".trnflow/runs" / RUN / f"{attempt}.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"one line\nthe last words")
    assert shell.json("status")["runs"] == []
    assert shell("logs", "last", "--follow").stdout == "== train ==\none line\nthe last words\n"
    assert shell.json("logs", "last") == {
        "schema": 1, "run": RUN, "logs": [{"stage": "train", "text": "one line\nthe last words"}],
    }  # fmt: skip


def test_a_log_is_printed_line_by_line_and_hides_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, printed = Log(tmp_path / "train.log", "train"), dict[Path, int]()
    shown = []
    for text, whole in (("one\nhttps://ann:pa55", False), ("word@host.example/\nthe last", False), (" words", True)):
        with log.file.open("a") as file:
            file.write(text)
        print_new(log, printed, whole=whole)
        shown.append(capsys.readouterr().out)
    assert shown == ["== train ==\none\n", "https://***@host.example/\n", "the last words\n"]
    (tmp_path / "pack.log").touch()
    print_new(Log(tmp_path / "pack.log", "pack_chunks"), printed, whole=True)
    assert capsys.readouterr().out == "== pack_chunks == (nothing printed)\n"


KILLED = """
import sys
from pathlib import Path
from tests.conftest import PROJECT
from tests.flows.cli.waiting_stage import WaitConfig, wait_for
from tests.helpers.runs import context, run_stage
from tests.helpers.waiting import wait_for as until
from trnflow.tasks.store import Store
store = Store(sys.argv[1] + "/.trnflow/store", Path(sys.argv[1]) / ".trnflow")
run_stage(wait_for, WaitConfig(path=sys.argv[1] + "/never"), context(store, run=sys.argv[2]))
"""


def test_a_run_that_is_killed_is_listed_as_killed_and_its_log_ends(tmp_path: Path) -> None:
    shell, store = opened(tmp_path)
    run = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), RUN], cwd=PROJECT)
    until(lambda: [one for one in shell.json("runs")["runs"] if one["step"]])
    run.kill()
    run.wait()
    with log_file(store.home, RUN).open("ab") as file:
        file.write(b"a line of another program\n")
    (killed,) = until(lambda: [one for one in shell.json("runs")["runs"] if one["outcome"] == "killed"])
    assert (killed["run"], killed["recipe"], killed["hit"], killed["ran"]) == (RUN, "toy", 0, 0)
    assert killed["stage"] == "wait_for" and killed["step"] and killed["unit"] and killed["eta"] is None
    assert shell.json("logs", "toy")["run"] == RUN, "the recipe's newest run, though it is not on record"
    assert killed["ended"].endswith("Z") and killed["seconds"] > 0
    listing = shell("runs")
    assert "killed" in listing.stdout.splitlines()[-1]
    assert listing.stderr.count("1 lines of ") == 1 and "are no events, and were skipped" in listing.stderr
    assert shell.json("runs", "--store", str(tmp_path / ".trnflow/store"))["runs"] == [killed]
    Store(str(tmp_path / "other"), tmp_path / ".trnflow").prepare()
    assert shell.json("runs", "--store", str(tmp_path / "other"))["runs"] == [], "the run belongs to another store"
    assert shell("logs", RUN, "--follow").stdout.startswith("== wait_for ==\na line of the stage\n")


def test_the_log_of_a_later_version_is_named_and_passed_over(tmp_path: Path) -> None:
    shell, _ = opened(tmp_path)
    file = log_file(tmp_path / ".trnflow", RUN)
    file.parent.mkdir(parents=True)
    begun = {"recipe": "toy", "kind": "run", "parent": None, "settings": {}, "options": {}, "store": "", "host": {}}
    head = {"n": 0, "time": 1.0, "event": "run_begun", "schema": 9, "run": RUN, "checkout": None, "price_per_hour": 0}
    file.write_text(json.dumps(head | begun) + "\n")
    listing = shell("runs")
    assert "is an event log in format 9, and this version of trnflow reads up to 1" in listing.stderr
    assert RUN not in listing.stdout
