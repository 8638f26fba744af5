"""What a program asks of the disk, in its order, as the C library hears it: what was not synced does not survive a power cut."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.helpers.preloads import built

PROJECT = Path(__file__).parents[2]


class Call(NamedTuple):
    """A call. what: write, sync or name; path: of the file, `*` when all are synced; name: the one that a file is given."""

    what: str
    path: str
    name: str = ""


def disk_calls(program: str, folder: Path, *arguments: object) -> list[Call]:
    """Run a Python program, and return its calls. folder: gets the record of calls."""
    record = folder / "disk-calls"
    environ = os.environ | {"LD_PRELOAD": built(Path(__file__).with_suffix(".c"), folder), "DISK_CALLS": str(record)}
    subprocess.run([sys.executable, "-c", program, *map(str, arguments)], cwd=PROJECT, env=environ, check=True)
    return [Call(*line.split("\t")) for line in record.read_text().splitlines()]
