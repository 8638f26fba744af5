"""Input that is made to take all memory is refused by its place, and takes little: `pytest -m nightly -s` prints how much."""

from __future__ import annotations

import gzip
import subprocess
import time
from pathlib import Path

import pytest

from tests.helpers.command_line import Shell, write_project
from trnflow.tasks.launch.guard import Held

GIB = 2**30


def bomb(folder: Path) -> None:
    """10 GiB of one line in 10 MB: members of a gzip file are one text."""
    member = gzip.compress(b"a" * 2**26, 1)
    (folder / "train.jsonl").unlink()
    with (folder / "train.jsonl.gz").open("wb") as file:
        file.write(gzip.compress(b'{"label": "pos", "text": "'))
        for _ in range(10 * GIB // 2**26):
            file.write(member)


def cell(folder: Path) -> None:
    """A cell of 200 MB."""
    with (folder / "train.jsonl").open("a") as file:
        file.write('\n{"label": "pos", "text": "' + "a " * 10**8 + '"}\n')


@pytest.mark.nightly
@pytest.mark.parametrize("attack", [bomb, cell])
def test_an_attack_is_named_and_takes_less_than_2_gib(attack: object, tmp_path: Path) -> None:
    shell = Shell(write_project(tmp_path))
    assert callable(attack)
    attack(shell.folder / "rows")
    run = shell.start("run", "mine.yaml", "--direct", "--until", "load_data", stderr=subprocess.PIPE)
    held = Held(run.pid)
    while run.poll() is None:
        held.measure()
        time.sleep(0.05)
    assert run.stderr is not None
    error = run.stderr.read()
    print(f"{attack.__name__}: at most {held.most / GIB:.2f} GiB in all processes; {error}")
    assert run.returncode == 1
    assert "train.jsonl" in error and "MB" in error
    assert held.most < 2 * GIB
