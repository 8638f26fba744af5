"""A run in progress, seen from another machine: a process with a home of its own that has the store alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.helpers.command_line import Shell
from tests.helpers.s3_server import s3_endpoint, s3_root  # noqa: F401 - fixtures
from tests.helpers.waiting import wait_for as until
from trnflow.tasks.events import log_copy, log_file, read_log
from trnflow.tasks.store import Store

RUN = "20260101T000000Z-abc123"
RUNS = """
import sys
from pathlib import Path
from tests.flows.cli.waiting_stage import WaitConfig, wait_for
from tests.helpers.runs import context, run_stage
from trnflow.tasks.store import Store
root, home, run = sys.argv[1:]
store = Store(root, Path(home) / ".trnflow")
run_stage(wait_for, WaitConfig(path=home + "/go"), context(store, run=run))
"""


class There:
    """A run in a home of its own."""

    def __init__(self, root: str, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        environ = os.environ | {"PYTHONPATH": str(PROJECT)}
        self.process = subprocess.Popen([sys.executable, "-c", RUNS, root, str(folder), RUN], cwd=PROJECT, env=environ)

    def let_go(self) -> None:
        (self.folder / "go").touch()
        assert self.process.wait(120) == 0


@pytest.fixture
def here(tmp_path: Path) -> Shell:
    (folder := tmp_path / "here").mkdir()
    return Shell(folder)


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "local" else request.getfixturevalue("s3_root")


@pytest.fixture
def there(root: str, here: Shell, tmp_path: Path) -> Iterator[There]:
    here.environ["TRNFLOW_STORE"] = root
    Store(root, here.folder / ".trnflow").prepare()
    there = There(root, tmp_path / "there")
    yield there
    there.process.kill()
    there.process.wait()


def step_of(here: Shell) -> Any:
    found = here.json("status")["runs"]
    return found and found[0]["step"]


@pytest.mark.slow
def test_status_runs_and_logs_show_it_until_it_ends(there: There, here: Shell, tmp_path: Path) -> None:
    until(lambda: step_of(here))
    (one,) = here.json("runs")["runs"]
    assert (one["run"], one["outcome"], one["stage"], one["ended"]) == (RUN, "running", "wait_for", None)
    shown: dict[str, subprocess.CompletedProcess[str]] = {}
    commands = {"logs": ("logs", RUN, "--follow"), "status": ("status", RUN, "--follow")}
    followers = [
        threading.Thread(target=lambda name=name, words=words: shown.update({name: here(*words)}))  # type: ignore[misc]
        for name, words in commands.items()
    ]
    for follower in followers:
        follower.start()
    # what happens there is seen here ten seconds later at most, and the command's own start
    first = step_of(here)
    begun = time.monotonic()
    until(lambda: step_of(here) > first or first == 99)
    assert time.monotonic() - begun < 60
    there.let_go()
    for follower in followers:
        follower.join(120)
    assert shown["logs"].stdout.splitlines() == ["== wait_for ==", "a line of the stage", "the last line"]
    assert "wait_for ..." in shown["status"].stderr and shown["status"].stdout == f"run {RUN}: completed\n"
    assert here("logs", RUN).stdout == shown["logs"].stdout
    (log,) = here.json("logs", RUN)["logs"]
    assert log == {"stage": "wait_for", "text": "a line of the stage\nthe last line\n"}
    assert not log_file(here.folder / ".trnflow", RUN).exists(), "nothing was written here"


@pytest.mark.slow
def test_a_run_that_is_killed_there_is_killed_here(
    there: There, here: Shell, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(root, here.folder / ".trnflow")
    until(lambda: b"stage_begun" in b"".join(map(store.backend.read, store.backend.names(f"logs/{RUN}"))))
    os.kill(there.process.pid, signal.SIGKILL)
    there.process.wait()
    (one,) = here.json("runs")["runs"]
    assert one["outcome"] == "running", "its last sign is recent"
    # three minutes later
    monkeypatch.setattr(log_copy, "SILENT_SECONDS", -1.0)
    from trnflow.flows.cli.live.runs_command import copied_runs, logged_summary

    (state,) = copied_runs(store, set())
    assert state.outcome == "killed" and logged_summary(state)["stage"] == "wait_for"
    whole = read_log(log_file(tmp_path / "there/.trnflow", RUN))
    assert json.dumps(state.settings) == json.dumps(whole.settings) and state.host == whole.host
