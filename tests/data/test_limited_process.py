"""Calls in another process: all begin in the same state, and none outlives its caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.waiting import wait_for
from trnflow.tasks.data.limited_process import _ended, call_limited, call_own
from trnflow.tasks.errors import ConfigError, DataError, Interrupted, ProcessFailed, TrnflowError
from trnflow.tasks.launch.python import python

ROOT = Path(__file__).parents[2]


def test_calls_share_a_server_and_no_state() -> None:
    first, second = (call_limited("tests.data.limited_calls:state", {}) for _ in range(2))
    assert first == second and first["calls"] == 1


def test_a_server_that_ended_is_replaced() -> None:
    first = call_limited("tests.data.limited_calls:state", {})
    os.kill(first["server"], signal.SIGKILL)
    assert call_limited("tests.data.limited_calls:state", {})["server"] != first["server"]


def test_a_template_gets_half_a_gibibyte_and_own_code_four() -> None:
    asked = {"bytes": 700 << 20, "hook": "format.make"}
    with pytest.raises(ProcessFailed, match=r"row 1: .*MemoryError"):
        call_limited("tests.data.limited_calls:holds", asked)
    assert call_limited("tests.data.limited_calls:holds", {"bytes": 300 << 20}) == {"held": 300 << 20}
    assert call_own("tests.data.limited_calls:holds", asked) == {"held": 700 << 20}


KEPT = """
import time
from trnflow.tasks.data.limited_process import IDLE, call_limited, keep_servers
keep_servers()
servers = []
for _ in range(2):
    servers.append(call_limited("tests.data.limited_calls:state", {})["server"])
    time.sleep(IDLE + 0.5)
print(*servers)
"""


def test_a_kept_server_waits_until_its_caller_ends() -> None:
    done = subprocess.run([sys.executable, "-c", KEPT], check=True, capture_output=True, text=True, cwd=ROOT)
    first, second = done.stdout.split()
    assert first == second
    wait_for(lambda: not Path(f"/proc/{first}").exists())


def wait(file: str) -> None:
    call_limited("tests.data.limited_calls:waits", {"file": file})


def test_a_call_ends_with_its_caller(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with subprocess.Popen(python(f"{__name__}:wait", str(file))) as caller:
        wait_for(lambda: file.exists() and file.read_text())
        caller.kill()
    wait_for(lambda: not Path(f"/proc/{file.read_text()}").exists())


ENDS = """
from trnflow.tasks.data.limited_process import call_limited, call_own, keep_servers
from trnflow.tasks.errors import TrnflowError
keep_servers()
for call in (call_limited, call_own):
    try:
        call("tests.data.limited_calls:ends", {"hook": "format.make"})
    except TrnflowError as error:
        print(error.message)
"""


def test_code_that_ends_its_process_with_status_0_is_not_waited_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS], check=True, capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert done.stdout.count("format.make ended its process: status 0") == 2


def test_what_own_code_prints_can_not_drive_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    call_own("tests.data.limited_calls:prints", {"fails": False, "hook": "format.make"})
    assert r"\x1b]52;c;AAAA\x07\rtrain ran" in capsys.readouterr().err
    with pytest.raises(ProcessFailed) as caught:
        call_own("tests.data.limited_calls:prints", {"fails": True, "hook": "format.make"})
    assert "\x1b" not in str(caught.value) and r"ValueError: \x1b[2J" in str(caught.value)


HOOK = "format.make"


@pytest.mark.parametrize(
    ("status", "hook", "errors", "error", "message"),
    [
        (
            -signal.SIGPROF,
            None,
            "",
            ConfigError,
            "split train row 3: its template takes more than 5 s of processor time",
        ),
        (-signal.SIGINT, HOOK, "", Interrupted, "interrupted"),
        (-signal.SIGALRM, HOOK, "", DataError, "train row 3: format.make takes longer than format.row_seconds"),
        (7, HOOK, "", DataError, "train row 3: format.make ended its process: status 7"),
        (
            7,
            HOOK,
            "a line\nthe last",
            ProcessFailed,
            "split train row 3: the process that makes examples ended: the last",
        ),
        (
            -signal.SIGALRM,
            None,
            "",
            ProcessFailed,
            "split train row 3: the process that makes examples ended: status -14",
        ),
    ],
)
def test_the_end_of_a_process_is_told_with_its_row(
    status: int, hook: str | None, errors: str, error: type[TrnflowError], message: str
) -> None:
    found = _ended(status, "split train row 3", errors, hook)
    assert (type(found), found.message) == (error, message)
