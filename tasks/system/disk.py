"""Look at free disk space while files are written."""

from __future__ import annotations

import shutil
from pathlib import Path

from trnflow.tasks.errors import MachineError

SCHEMA = 1

KEPT_FREE = 200_000_000
"""Bytes that stay free on a disk that is written to."""


def check_room(folder: Path, more: int = 0) -> None:
    """Raise MachineError unless KEPT_FREE is left on a folder's disk after `more` bytes. Costs a system call."""
    free = shutil.disk_usage(folder).free
    if free < more + KEPT_FREE:
        raise MachineError(
            f"the disk of {folder} is almost full: {free / 1e6:,.0f} MB are free, and {KEPT_FREE / 1e6:.0f} MB must stay so",
            "free some space, or put the home (TRNFLOW_HOME) on another disk; what is finished stays",
        )
