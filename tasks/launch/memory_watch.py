"""End this process when it holds too much memory, or a library takes too long, with one line, for commands that read files
from elsewhere themselves.

A forked process measures: a thread would wait for the interpreter while a library parses.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator
from mmap import mmap
from pathlib import Path

from trnflow.tasks.errors import MachineError

_LIMIT = struct.Struct("dd")
"""Of the shared page: the processor time of this process at which `limited_time` ends it (0: never), and the limit's seconds."""
_page: mmap | None = None


@contextlib.contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Have this process ended if the block takes more processor time, its threads' counted; only after `watch_memory` (Linux)."""
    if _page is None:
        yield
        return
    # not a signal's handler: Python calls none while a library computes
    _LIMIT.pack_into(_page, 0, time.process_time() + seconds, seconds)
    try:
        yield
    finally:
        _LIMIT.pack_into(_page, 0, 0.0, 0.0)


def watch_memory(command: str, say: Callable[[MachineError], None], caller: int | None = None) -> None:
    """Fork a process that kills this one and its descendants when they hold more than the machine can spare.

    say: prints the error. caller: a descriptor, whose other end's closing kills this process, too. The other process ends
    with this one. Call it before there are threads, and before torch is loaded.
    """
    global _page
    watched, _page = os.getpid(), mmap(-1, _LIMIT.size)
    if os.fork():
        return
    try:
        # imported here, so that the command does not wait for it
        from trnflow.tasks.launch.guard import LOOK_MS, Held, die_with_parent
        from trnflow.tasks.launch.memory import memory_limit

        die_with_parent(watched)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the watched process deals with them
            signal.signal(number, signal.SIG_IGN)
        os.closerange(0, 2)
        held, most, late = Held(watched), memory_limit(None), 0.0
        closed = select.poll()
        if caller is not None:
            closed.register(caller, 0)
        gone: list[tuple[int, int]] = []
        while held.measure() <= most and not (late := _late(watched, _page)) and not (gone := closed.poll(LOOK_MS)):
            if os.getppid() != watched:  # where no kernel tells that it ended
                return
        if not gone:
            say(_error(command, late, most))
        for pid in {*held.pids} - {os.getpid()}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    finally:
        os._exit(0)


def _error(command: str, late: float, most: int) -> MachineError:
    from trnflow.tasks.launch.memory import shown

    what, other = f"it held more than {shown(most)} of memory", "a machine with more memory"
    if late:
        what = f"its tokenizer took more than {late:,.0f} s of processor time"
        other = "another model, or shorter texts"
    return MachineError(f"{command} was ended: {what}", f"a file that it reads may be an attack; else take {other}")


def _late(pid: int, page: mmap) -> float:
    """Return the seconds of a limit that a process is beyond, else 0."""
    end, seconds = _LIMIT.unpack_from(page)
    if not end:
        return 0.0
    with contextlib.suppress(OSError, IndexError):  # it has ended, or there is no /proc
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        used = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        return float(seconds) if used > end else 0.0
    return 0.0
