"""What runs leave on a machine, however they ended: nothing."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest

from tests.helpers.command_line import InProcessShell, Shell, write_project
from tests.helpers.waiting import wait_for
from tests.launch.processes import marked
from trnflow.tasks.launch.warm_parents import close_all

RUN = ["run", "mine.yaml", "--direct", "--until", "precompile", "tracking.enabled=false"]


def other(number: int) -> str:
    """A setting with which `precompile`, which imports torch, runs again."""
    return f"train.global_batch={number + 8}"


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def kill_at_work(shell: Shell, number: int) -> None:
    """Kill a run's process while a stage of it works."""
    run = shell.start(*RUN, other(number))
    wait_for(lambda: [*shell.folder.glob(".trnflow/work/*/out.scratch")], pause=0.01)
    run.send_signal(signal.SIGKILL)
    run.wait()


@pytest.mark.slow
def test_six_runs_of_which_two_are_killed_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user, temporary = tmp_path / "user", tmp_path / "temporary"
    for name, folder in (("HOME", user), ("TMPDIR", temporary)):
        folder.mkdir()
        monkeypatch.setenv(name, str(folder))
    shell = Shell(write_project(tmp_path / "project"))
    with (shell.folder / "mine.yaml").open("a") as recipe:
        recipe.write("train: {engine: native, devices: 1}\n")
    inside = InProcessShell(shell.folder)
    opened = []
    for number in range(3):
        assert inside(*RUN, other(number)).returncode == 0
        gc.collect()  # a run's store, with its open memo, is garbage in a circle
        opened.append(len(os.listdir("/proc/self/fd")))
    close_all()
    for number in range(2):
        kill_at_work(shell, 20 + number)
        wait_for(lambda: not marked(f"TMPDIR={shell.folder}") and not marked(f"TMPDIR={temporary}"))
    last = shell(*RUN, other(30))
    assert last.returncode == 0, last.stderr
    assert opened[1] == opened[-1]
    assert left(temporary) == left(user) == left(shell.folder / ".trnflow/work") == []
