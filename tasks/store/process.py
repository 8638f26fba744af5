"""Which process this is, told so that others can see whether it still lives without asking it.

Costs a few reads below /proc (0.1 ms). Where there is no /proc, less is known and a process counts as living for longer.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import NamedTuple

ATTEMPT = "TRNFLOW_ATTEMPT"
"""The variable by which a stage's own processes are known; they outlive a killed run by their grace."""

NAMELESS = ("", "localhost")


class Process(NamedTuple):
    """boot: of the kernel; space: the namespace its pid counts in; start: its start in clock ticks, as pids are used again."""

    host: str
    boot: str
    space: str
    pid: int
    start: int

    @property
    def tag(self) -> str:
        """For the names of folders; `read_tag` reads it."""
        return "_".join(str(part).replace("/", "-") for part in self)

    def is_dead(self) -> bool:
        """True only when it certainly ended: on this machine now, or before its machine's last boot."""
        here = this_process()
        if (self.boot, self.space) == (here.boot, here.space) and (here.boot or self.host == here.host):
            return not _is_running(self.pid, self.start)
        return self.boot != here.boot and self.host == here.host and self.host not in NAMELESS


def this_process() -> Process:
    pid = os.getpid()
    return Process(socket.gethostname(), _boot(), _space(), pid, _stat(pid)[1])


def read_tag(tag: str) -> Process | None:
    """The process of a `tag`, or None for any other text."""
    parts = tag.rsplit("_", 4)
    if len(parts) != 5 or not (parts[3].isdigit() and parts[4].isdigit()):
        return None
    return Process(parts[0], parts[1], parts[2], int(parts[3]), int(parts[4]))


def lives_on(attempt: str) -> bool:
    """Whether a process of this attempt's stage still runs on this machine. Looks at every process (10 ms)."""
    mark = f"{ATTEMPT}={attempt}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone, or another user's
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                return True
    return False


def _is_running(pid: int, start: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    state, started = _stat(pid)
    return state not in ("Z", "X") and (not start or not started or start == started)


def _stat(pid: int) -> tuple[str, int]:
    """(state, start in clock ticks) of a process; ("", 0) where that can't be seen."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[19])


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:13]
    except OSError:
        return ""


def _space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""
