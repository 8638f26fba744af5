"""Ordinary causes on this machine are told as such, not as a defect of the program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import Shell
from trnflow.tasks.errors import unexpected


@pytest.mark.parametrize("command", [("up",), ("run", "demo", "data.limit=50", "tracking.enabled=false")])
def test_a_home_below_a_file_is_told_with_its_path_and_a_fix(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home, store = str(tmp_path / "file/home"), str(tmp_path / "store")
    said = Shell(tmp_path).error(*command, code=1, TRNFLOW_HOME=home, TRNFLOW_STORE=store)
    assert str(tmp_path / "file") in said and "set TRNFLOW_HOME" in said and "unexpected" not in said


def test_causes_are_told_by_what_the_system_itself_answers(tmp_path: Path) -> None:
    """The kernel's own refusals: of a write to a full device, and of one file too many."""
    program = (
        "import resource; from trnflow.tasks.errors import unexpected\n"
        "def told(call):\n"
        "    try: call()\n"
        "    except OSError as error: print(unexpected(error))\n"
        "told(lambda: open('/dev/full', 'w', buffering=1).write('x\\n'))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))\n"
        f"told(lambda: [open('{tmp_path / 'made'}', 'w') for _ in range(20)])\n"
        "told(lambda: open('/proc/self/mem/x'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    full, files, path = done.stdout.splitlines()
    assert "is full" in full and "free some space" in full
    assert "too many files are open" in files and "ulimit -n" in files
    assert "/proc/self/mem/x" in path and "a part of its path is a file" in path


def test_an_unexpected_error_says_where_it_arose() -> None:
    try:
        {}["gone"]
    except KeyError as error:
        place = rf"unexpected KeyError in {test_an_unexpected_error_says_where_it_arose.__name__} \(test_errors\.py:\d+\): 'gone'"
        assert re.match(place, unexpected(error).message)
    assert unexpected(ValueError("x")).message == "unexpected ValueError: x"
