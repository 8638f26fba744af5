"""Identify a process, so that others can tell later whether it still runs (0.1 ms)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# marks an attempt's processes with its id: they may outlive a killed run for a grace period
ATTEMPT = "TRNFLOW_ATTEMPT"
# marks the processes of all stages that a process started with its `Process.tag`
STARTER = "TRNFLOW_STARTER"

NAMELESS = re.compile(r"|localhost|algo-\d+")
"""Names that many machines have at a time; `algo-1` is each container of SageMaker."""

# the environment of a process in the middle of an exec reads as empty
EXEC_LOOKS, EXEC_SECONDS = 20, 0.005


class Process(NamedTuple):
    """A process on any machine, told from a later one with the same pid.

    boot, space: ids of the kernel's boot and of the pid namespace, or ""; start: clock ticks since boot, or 0.
    """

    host: str
    boot: str
    space: str
    pid: int
    start: int

    @property
    def tag(self) -> str:
        """The five attributes joined by `_`, fit for a file name; `read_tag` reads it."""
        return "_".join(str(part).replace("/", "-") for part in self)

    def is_dead(self) -> bool:
        """Return whether the process has certainly ended."""
        here = this_process()
        if self._is_seen_by(here):
            return not is_running(self.pid, self.start)
        # of another machine or container nothing is certain
        return self.boot != here.boot and self.host == here.host and not NAMELESS.fullmatch(self.host)

    def is_running_here(self) -> bool:
        """Return whether the process runs on this machine, in this pid namespace."""
        return self._is_seen_by(this_process()) and is_running(self.pid, self.start)

    def _is_seen_by(self, here: Process) -> bool:
        return (self.boot, self.space) == (here.boot, here.space) and bool(here.boot or self.host == here.host)


def this_process() -> Process:
    return process_of(os.getpid())


def process_of(pid: int) -> Process:
    """Return the process with this pid; its start is 0 if there is none, or no /proc."""
    return Process(socket.gethostname(), _boot(), _space(), pid, _stat(pid)[1])


def read_tag(tag: str) -> Process | None:
    """Return the Process of a tag; None for any other text."""
    parts = tag.rsplit("_", 4)
    if len(parts) != 5 or not (parts[3].isdigit() and parts[4].isdigit()):
        return None
    return Process(parts[0], parts[1], parts[2], int(parts[3]), int(parts[4]))


def lives_on(attempt: str) -> bool:
    """Return whether a process of an attempt, or of a starter's tag, runs on this machine (10 ms)."""
    return any(True for _ in processes_of(attempt))


def processes_of(attempt: str) -> Iterator[int]:
    """Yield the pids of an attempt's processes, or of those that a starter's tag marks, on this machine."""
    marks = {f"{name}={attempt}".encode() for name in (ATTEMPT, STARTER)}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if not marks.isdisjoint(_environ(folder).split(b"\0")):
                yield int(folder.name)


def _environ(folder: Path) -> bytes:
    """Return a process's environment; empty for the kernel's."""
    for _ in range(EXEC_LOOKS):
        environ = (folder / "environ").read_bytes()
        if environ:
            return environ
        os.readlink(folder / "exe")  # OSError: a process of the kernel, or one that has ended
        time.sleep(EXEC_SECONDS)
    return b""


def is_running(pid: int, start: int = 0) -> bool:
    """Return whether a pid runs on this machine. start: clock ticks since boot; 0 accepts any."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    state, started = _stat(pid)
    return state not in ("Z", "X") and (not start or not started or start == started)


def how_ended(status: int) -> str:
    """Return "exit code N", or "signal NAME" for a negative status."""
    if status >= 0:
        return f"exit code {status}"
    return f"signal {signal.Signals(-status).name if -status in {*signal.Signals} else -status}"


def _stat(pid: int) -> tuple[str, int]:
    """Return (state, start in clock ticks since boot); ("", 0) if there is none, or no /proc."""
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
