"""Helpers that look at processes, and stop threads."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.helpers import waiting

PATIENCE = 60.0


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False


def gone(pids: Iterable[int]) -> bool:
    deadline = time.monotonic() + PATIENCE
    left = list(pids)
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if alive(pid)]
        time.sleep(0.02)
    return not left


def wait_for(file: Path, read: Callable[[str], Any] = str) -> Any:
    waiting.wait_for(file.exists, PATIENCE, 0.02)
    return read(file.read_text())


def children(pid: int) -> list[int]:
    """The children of a process without threads, in the order in which they were started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def marked(mark: str) -> list[int]:
    """The processes that bear `NAME=value` in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def send(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raise an exception in a thread, as Prefect does when it cancels a task that runs in one."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))
