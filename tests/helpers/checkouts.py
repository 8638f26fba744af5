"""Copies of the program, whose code a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.conftest import PROJECT


def copy_program(to: Path, *more: str) -> Path:
    """Copy the program into a folder, with its bytecode, which saves compiling it; return the folder. more: other folders."""
    for name in ("trnflow", "flows", "tasks", "conf", *more):
        shutil.copytree(PROJECT / name, to / name, symlinks=True)
    return to
