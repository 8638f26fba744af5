"""docs/events.md names each event with its fields, and its follower shows a real run."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.helpers.command_line import Shell, write_project
from trnflow.tasks.events import SCHEMA, event_types

PAGE = (PROJECT / "docs/events.md").read_text()
FOLLOWER = PAGE.partition("```python\n")[2].partition("```")[0]
SMALL = ("train.engine=native", "train.devices=1", "tracking.enabled=false")


def test_the_page_has_each_event_and_each_field() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
    classes = event_types._CLASSES
    assert rows.keys() == classes.keys() and f"(the format's version, {SCHEMA})" in rows["run_begun"]
    for name, event in classes.items():
        fields = set(event.__annotations__) - {"n", "time", "event", "stage"}
        assert not {field for field in fields if f"`{field}`" not in rows[name]}, name


def test_the_follower_has_30_lines() -> None:
    assert len(FOLLOWER.strip().splitlines()) <= 30


@pytest.mark.parametrize(("until", "unit"), [("load_data", "train rows"), ("train", "steps")])
def test_the_follower_of_the_page_shows_a_run_while_it_runs(until: str, unit: str, tmp_path: Path) -> None:
    """One that completes, and one that is killed in its training."""
    is_killed = until == "train"
    shell = Shell(write_project(tmp_path / "project"))
    (tmp_path / "follow.py").write_text(FOLLOWER)
    command = [sys.executable, "-m", "trnflow", "run", "mine.yaml", "--direct", "--until", until, *SMALL]
    endless = ["train.max_steps=1000000"] if is_killed else []
    run = subprocess.Popen([*command, *endless], cwd=shell.folder, env=shell.environ, stderr=subprocess.DEVNULL)
    try:
        while not (logs := list((shell.folder / ".trnflow/runs").glob("*/events.jsonl"))):
            assert run.poll() is None
            time.sleep(0.01)
        follower = [sys.executable, "-I", str(tmp_path / "follow.py"), str(logs[0])]
        with subprocess.Popen(follower, stdout=subprocess.PIPE, text=True) as shown:
            assert shown.stdout is not None
            lines = [shown.stdout.readline()]
            while not re.fullmatch(rf"{until}: \d+/\d+ {unit}\n", lines[-1]):
                lines.append(shown.stdout.readline())
                assert lines[-1], lines
            assert not is_killed or run.poll() is None, "it is seen while the run goes on"
            if is_killed:
                run.kill()
            lines += shown.stdout.readlines()
    finally:
        run.kill()
        run.wait()
    assert lines[-1] == ("killed\n" if is_killed else "completed\n")
