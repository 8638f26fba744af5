"""End this process when it holds too much memory, with one line, for commands that read files from elsewhere themselves.

A forked process measures: a thread would wait for the interpreter while a library parses.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from trnflow.tasks.errors import MachineError


def watch_memory(command: str, say: Callable[[MachineError], None]) -> None:
    """Fork a process that kills this one and its descendants when they hold more than the machine can spare.

    say: prints the error. The other process ends with this one. Call it before there are threads, and before torch is loaded.
    """
    watched = os.getpid()
    if os.fork():
        return
    try:
        # imported here, so that the command does not wait for it
        from trnflow.tasks.launch.guard import LOOK_MS, Held, die_with_parent
        from trnflow.tasks.launch.memory import memory_limit, shown

        die_with_parent(watched)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the watched process deals with them
            signal.signal(number, signal.SIG_IGN)
        os.closerange(0, 2)
        held, most = Held(watched), memory_limit(None)
        while held.measure() <= most:
            time.sleep(LOOK_MS / 1000)
        say(
            MachineError(
                f"{command} was ended: it held more than {shown(most)} of memory",
                "a file that it reads may be an attack; else take a machine with more memory",
            )
        )
        for pid in {*held.pids} - {os.getpid()}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    finally:
        os._exit(0)
