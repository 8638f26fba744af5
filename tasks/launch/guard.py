"""A small process between the flow and a worker, so that nothing outlives the flow.

    guard.py GRACE COMMAND...     stdin: lifeline from the parent; stdout: event pipe to it; stderr: the log

It lives in a session of its own (the terminal's Ctrl-C does not reach it) and starts the worker in another. It ends the
worker, and all that the worker started, when the lifeline closes (the parent died, however), when the parent's id
changes, or on SIGTERM, SIGINT, SIGHUP: TERM to the worker's process group, KILL after GRACE seconds, or at once on a
second signal. When the worker ends by itself, what it left behind gets TERM and a short grace. On Linux it also ends
descendants that left the worker's group. Last, it writes `{"guard": {"exit": status}}` (negative: the signal's number)
to the event pipe.

Standard library only, run as a file with `-I -S`: it starts in about 20 ms and must not fail for lack of a package.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time

LIFELINE, EVENTS, LOG = 0, 1, 2
WORKER_EVENTS = 3  # the worker's copy of the event pipe
LEFTOVER_GRACE = 3.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STOP = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def main(grace: float, command: list[str]) -> int:
    parent = os.getppid()
    wake = _wake_on_signals()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    worker = _start(command)
    _say({"worker": worker})
    status = _watch(worker, parent, wake, grace)
    _sweep(worker, min(grace, LEFTOVER_GRACE))
    _say({"exit": status})
    return status if status >= 0 else 128 - status


def _watch(worker: int, parent: int, wake: int, grace: float) -> int:
    """Wait until the worker ended, ending it when told to; its exit code, or minus its signal."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(LIFELINE, select.POLLIN)
    deadline = 0.0
    while True:
        ready = {number for number, _ in poll.poll(500)}
        orders = _drain(wake) & STOP if wake in ready else set()
        if LIFELINE in ready:
            poll.unregister(LIFELINE)
        status = _reap(worker)
        if status is not None:
            return status
        if not deadline and (orders or LIFELINE in ready or os.getppid() != parent):
            deadline = time.monotonic() + grace
            _signal(worker, signal.SIGTERM)
            _signal(worker, signal.SIGCONT)  # a stopped process takes no TERM
        elif deadline and (orders or time.monotonic() > deadline):
            _signal(worker, signal.SIGKILL)


def _start(command: list[str]) -> int:
    """Fork and exec the worker: own session, no stdin, stdout and stderr to the log, the event pipe as descriptor 3."""
    guard = os.getpid()
    worker = os.fork()
    if worker:
        return worker
    try:
        os.setsid()
        die_with_parent(guard)  # should the guard itself be killed
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would pass that on
        os.dup2(EVENTS, WORKER_EVENTS)
        os.dup2(LOG, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execv(command[0], command)
    except OSError as error:
        os.write(LOG, f"can't start {command[0]}: {error}\n".encode())
    os._exit(127)


def _reap(worker: int) -> int | None:
    """Collect every child that ended; the worker's status if it was among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                status = os.waitstatus_to_exitcode(ended[1])
    return status


def _sweep(worker: int, grace: float) -> None:
    """End what the worker left: its group, and on Linux every descendant (orphans become the guard's children)."""
    for order, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, LEFTOVER_GRACE)):
        deadline = time.monotonic() + seconds
        told: set[int] = set()
        if _living(worker):
            _signal(worker, order)
        while _living(worker) and time.monotonic() < deadline:
            for child in set(_children()) - told:  # grandchildren become children as their parents end
                told.add(child)
                _signal_one(child, order)
            time.sleep(0.02)
            _reap(worker)


def _living(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return bool(_children())
    except PermissionError:
        return True
    return True


def _children() -> list[int]:
    """This process's children, where the system tells (Linux)."""
    try:
        pids = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY)
    except OSError:
        return []
    try:
        return [int(pid) for pid in os.read(pids, 1 << 16).split()]
    finally:
        os.close(pids)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _signal_one(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _wake_on_signals() -> int:
    """A descriptor that becomes readable, with the signals' numbers, when one arrives or a child ends."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (*STOP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return read


def _drain(wake: int) -> set[int]:
    with contextlib.suppress(BlockingIOError):
        return set(os.read(wake, 4096))
    return set()


def _say(fields: dict[str, int]) -> None:
    """One line to the parent, if it still listens; it starts anew, for a killed worker may have left half a line."""
    with contextlib.suppress(OSError):
        os.write(EVENTS, b"\n" + json.dumps({"guard": fields}).encode() + b"\n")


def die_with_parent(parent: int) -> None:
    """For a process below the worker: end at once when its parent, of that id, does (Linux); now, if it already has."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    """Linux's prctl; elsewhere nothing, and the lifeline and the process group do the work."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
