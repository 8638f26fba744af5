"""However the flow's process ends, nothing it started outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import waiting
from tests.helpers.products import sampled
from tests.launch.processes import PATIENCE, gone, marked, wait_for

PROJECT = Path(__file__).resolve().parents[2]


BEGAN = ("started", "forked")
"""How the stage's process begins: started anew, or forked from a warm parent."""


def start(folder: Path, stage: str, how: str, grace: float, where: str) -> tuple[subprocess.Popen, list[int]]:
    """A caller in a session of its own, as under a terminal; and the processes below it, once the stage is at work."""
    caller = subprocess.Popen(
        [sys.executable, "-m", "tests.launch.caller", str(folder), stage, how, str(grace), where],
        cwd=PROJECT,
        start_new_session=True,
    )
    return caller, wait_for(folder / "pids.json", json.loads)


@sampled("began, how, order", BEGAN, ["stubborn escaped", "plain"], [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_caller_takes_everything_with_it(began, tmp_path, order, how):
    caller, pids = start(tmp_path, "sleep", how, 0.5, began)
    os.kill(caller.pid, order)
    assert caller.wait() == -order
    assert gone(pids)


@pytest.mark.parametrize("began", BEGAN)
def test_a_killed_callers_stage_that_ignores_sigterm_is_killed_after_the_grace(began, tmp_path):
    caller, pids = start(tmp_path, "deaf", "", 0.2, began)
    caller.kill()
    caller.wait()
    assert gone(pids)


@sampled("began, order", BEGAN, [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_callers_stage_still_saves(began, tmp_path, order):
    caller, pids = start(tmp_path, "save", str(tmp_path / "saved"), 30, began)
    os.kill(caller.pid, order)
    caller.wait()
    assert gone(pids)
    assert (tmp_path / "saved").read_text() == "checkpoint"


@pytest.mark.parametrize("began", BEGAN)
def test_a_suspended_stage_of_a_killed_caller_wakes_and_saves(began, tmp_path):
    caller, pids = start(tmp_path, "save", str(tmp_path / "saved"), 10, began)
    os.kill(pids[0], signal.SIGSTOP)
    caller.kill()
    caller.wait()
    assert gone(pids)
    assert (tmp_path / "saved").read_text() == "checkpoint"


@sampled("began, where", BEGAN, ["main", "thread"])
def test_ctrl_c_lets_the_stage_save_and_raises_interrupted(began, tmp_path, where):
    caller, pids = start(tmp_path, "save", str(tmp_path / "saved"), 30, f"{where} {began}")
    os.killpg(caller.pid, signal.SIGINT)
    assert caller.wait() == 0
    told = json.loads((tmp_path / "outcome.json").read_text())
    assert told["outcome"]["type"] == "Interrupted"
    assert "step 5" in told["outcome"]["message"]
    assert told["heard"] == [{"info": "asleep"}, {"info": "saved"}]
    assert (tmp_path / "saved").exists()
    assert gone(pids)


@pytest.mark.parametrize("began", BEGAN)
def test_ctrl_c_kills_what_ignores_it_after_the_grace(began, tmp_path):
    caller, pids = start(tmp_path, "deaf", "", 0.3, began)
    os.killpg(caller.pid, signal.SIGINT)
    assert caller.wait() == 0
    assert json.loads((tmp_path / "outcome.json").read_text())["outcome"]["type"] == "Interrupted"
    assert gone(pids)


@pytest.mark.parametrize("began", BEGAN)
def test_ctrl_c_kills_a_stage_that_does_not_notice_and_has_nothing_to_save(began, tmp_path):
    caller, pids = start(tmp_path, "deaf", "", 600, began)
    os.killpg(caller.pid, signal.SIGINT)
    assert caller.wait(60) == 0
    assert json.loads((tmp_path / "outcome.json").read_text())["outcome"]["type"] == "Interrupted"
    assert gone(pids)


@pytest.mark.parametrize("began", BEGAN)
def test_a_suspended_caller_that_is_killed_leaves_nothing(began, tmp_path):
    caller, pids = start(tmp_path, "sleep", "stubborn", 0.3, began)
    os.kill(caller.pid, signal.SIGSTOP)
    os.kill(pids[0], signal.SIGSTOP)
    os.kill(caller.pid, signal.SIGKILL)
    caller.wait()
    assert gone(pids)


@pytest.mark.nightly
@pytest.mark.parametrize("began", BEGAN)
def test_no_moment_to_be_killed_at_leaves_anything(began, tmp_path):
    """SIGKILL at 50 moments from the caller's first instruction on; its descendants are known by a mark they inherit."""
    for moment in range(50):
        mark = f"TRNFLOW_TEST_MARK={os.getpid()}-{moment}"
        caller = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.launch.caller",
                str(tmp_path / str(moment)),
                "sleep",
                "plain stubborn",
                "0.2",
                began,
            ],
            cwd=PROJECT,
            env={**os.environ, **dict([mark.split("=")])},
            start_new_session=True,
        )
        time.sleep(moment * 0.02)
        caller.kill()
        caller.wait()
        # a warm parent that has not noticed yet may fork while its descendants are listed: list them again
        waiting.wait_for(lambda mark=mark: marked(mark) == [], PATIENCE, 0.02)
