"""The clock jumps a year ahead and back while a recipe trains: nothing is lost, made twice or waits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import Shell, write_project
from tests.helpers.event_logs import runs_with_metrics
from tests.helpers.moved_clock import YEAR, MovedClock
from tests.helpers.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

RUN = (
    "run",
    "mine.yaml",
    "--direct",
    "--on",
    "cpu",
    "export.target=none",
    "train.max_steps=60",
    "train.checkpoint_every=5",
)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(write_project(tmp_path / "project"))


@pytest.fixture
def clock(tmp_path: Path, shell: Shell) -> MovedClock:
    clock = MovedClock(tmp_path)
    shell.environ |= clock.environ
    return clock


def start(shell: Shell) -> tuple[subprocess.Popen[str], Path]:
    """Begin the run; return it and its log when training has begun."""
    command = [sys.executable, "-m", "trnflow", *RUN, "--json"]
    run = subprocess.Popen(
        command, cwd=shell.folder, env=shell.environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    home = shell.folder / ".trnflow"
    wait_for(lambda: run.poll() is not None or runs_with_metrics(home), 600)
    (log,) = runs_with_metrics(home)
    return run, log


def more_events(log: Path, count: int) -> None:
    before = len(log.read_text().splitlines())
    wait_for(lambda: len(log.read_text().splitlines()) >= before + count, 300)


def test_a_year_ahead_then_two_back_in_mid_run(shell: Shell, clock: MovedClock) -> None:
    run, log = start(shell)
    clock.move(YEAR)
    more_events(log, 10)
    clock.move(-YEAR)
    out, _ = run.communicate(timeout=900)
    assert run.returncode == 0
    done = json.loads(out)
    assert {stage["action"] for stage in done["stages"]} == {"ran"}
    assert 0 < sum(stage["seconds"] for stage in done["stages"]) <= done["seconds"] < 900
    clock.move(0)
    again = shell.json(*RUN)
    assert {stage["action"] for stage in again["stages"]} == {"hit"}
    assert [one["run"] for one in shell.json("runs")["runs"]] == [again["run"], done["run"]]
    assert shell.json("health")["problems"] == []


def test_a_run_that_is_killed_a_year_ahead_is_resumed_when_the_clock_is_right(shell: Shell, clock: MovedClock) -> None:
    run, log = start(shell)
    clock.move(YEAR)
    more_events(log, 10)
    wait_for(lambda: [*shell.folder.glob(".trnflow/store/partial/*/step-*/COMMIT")], 300)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    clock.move(0)
    again = shell.json(*RUN)
    train = next(stage for stage in again["stages"] if stage["stage"] == "train")
    events = (shell.folder / ".trnflow/runs" / again["run"] / "events.jsonl").read_text()
    assert train["action"] == "ran" and "resumes at step" in events
    assert [one["outcome"] for one in shell.json("runs")["runs"]] == ["completed", "killed"]
