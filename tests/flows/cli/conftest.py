"""A past for the tests of commands that read or tidy one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.command_line import DATA, InProcessShell, Shell, write_project


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Runs: last~2 as the recipe says, last~1 with shorter rows, last all hits; none of them may be changed."""
    shell = InProcessShell(write_project(tmp_path_factory.mktemp("past") / "house"))
    for override in ("", "tokenize.max_length=16", "tokenize.max_length=16"):
        shell.json("run", "mine.yaml", "--until", *DATA, *([override] if override else []))
    return shell


@pytest.fixture
def own_past(past: Shell, tmp_path: Path) -> Shell:
    shutil.copytree(past.folder, tmp_path / "house", symlinks=True)
    return InProcessShell(tmp_path / "house")
