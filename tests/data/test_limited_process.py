"""Calls in another process: all begin in the same state, and none outlives its caller."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.helpers.waiting import wait_for
from trnflow.tasks.data.limited_process import call_limited
from trnflow.tasks.launch.python import python


def test_calls_share_a_server_and_no_state() -> None:
    first, second = (call_limited("tests.data.limited_calls:state", {}) for _ in range(2))
    assert first == second and first["calls"] == 1


def test_a_server_that_ended_is_replaced() -> None:
    first = call_limited("tests.data.limited_calls:state", {})
    os.kill(first["server"], signal.SIGKILL)
    assert call_limited("tests.data.limited_calls:state", {})["server"] != first["server"]


def wait(file: str) -> None:
    call_limited("tests.data.limited_calls:waits", {"file": file})


def test_a_call_ends_with_its_caller(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with subprocess.Popen(python(f"{__name__}:wait", str(file))) as caller:
        wait_for(lambda: file.exists() and file.read_text())
        caller.kill()
    wait_for(lambda: not Path(f"/proc/{file.read_text()}").exists())
