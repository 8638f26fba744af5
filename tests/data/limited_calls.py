"""Functions that tests call in a separate process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Meta

calls: list[None] = []


def state(arguments: Meta, limit: Any) -> Meta:
    """The number of calls in this process, and the process that made it."""
    calls.append(None)
    return {"calls": len(calls), "server": os.getppid()}


def waits(arguments: Meta, limit: Any) -> Meta:
    Path(arguments["file"]).write_text(str(os.getpid()))
    time.sleep(60)
    return {}


def holds(arguments: Meta, limit: Any) -> Meta:
    """Hold `bytes` more within one rendering."""
    with limit("row 1"):
        held = bytearray(arguments["bytes"])
    return {"held": len(held)}


def ends(arguments: Meta, limit: Any) -> Meta:
    """End the process as if all were well."""
    os._exit(0)


def prints(arguments: Meta, limit: Any) -> Meta:
    """Print what would drive a terminal."""
    print("\x1b]52;c;AAAA\x07\rtrain ran")
    if arguments["fails"]:
        raise ValueError("\x1b[2J")
    return {}
