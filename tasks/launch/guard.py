"""The guard: ends all processes of a stage if flow or worker die, or they hold too much memory.

    guard.py GRACE MEMORY COMMAND...     stdin: lifeline; stdout: events; stderr: log

The lifeline's first line, JSON [pattern, replacement] pairs, hides secrets in the log. The last event is
`{"guard": {"exit": status, "memory": most bytes held}}`. Starts in 20 ms (`python -I -S`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

LIFELINE, EVENTS, LOG = 0, 1, 2
WORKER_EVENTS = 3  # file descriptor of the event pipe in the worker
LEFTOVER_GRACE = 3.0
LONGEST_LINE = 1 << 16
LOOK_MS = 100  # between two looks at the memory: the fastest stage gains half a gigabyte meanwhile
CHILDREN_SECONDS = 1.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STOP = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Each lets the worker save its state; repeated, they change nothing."""
LEAVE = signal.SIGUSR2
"""Kills the worker at once. Only a second Ctrl-C sends it: a platform may send those of STOP to every process, and twice."""


def main(grace: float, memory: int, work: list[str] | Callable[[], None]) -> int:
    """Start one worker, wait until it and its descendants have ended, and return its exit code, or 128 plus the signal.

    grace: seconds between SIGTERM and SIGKILL; memory: the bytes above which the stage is killed; work: the worker's command
    line, or a function to call after a fork.
    """
    parent = os.getppid()
    wake, woken_by = _wake_on_signals()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    hidden = _hidden()
    read, write = os.pipe() if hidden else (None, LOG)
    own = [wake, woken_by] if read is None else [wake, woken_by, read]
    worker = _start(work, write, own)
    _say({"worker": worker})
    log = _copy_without(hidden, read, write) if read is not None else None
    held = Held(worker)
    status = _watch(held, memory, parent, wake, grace)
    _sweep(worker, min(grace, LEFTOVER_GRACE))
    if log is not None:
        log.join(LEFTOVER_GRACE)
    _say({"exit": status, "memory": held.most})
    return status if status >= 0 else 128 - status


class Held:
    """Measures the memory that a worker and its descendants hold: anonymous pages, swapped ones too, but no mapped files.

    most: the most bytes so far; pids: of the worker and its descendants, when they were last listed.
    """

    # Measured instead of limited by the kernel: RLIMIT_AS and RLIMIT_DATA hold for each process, and count what torch,
    # XLA and allocators reserve and never use; a cgroup is rarely ours to make.
    def __init__(self, worker: int) -> None:
        self.worker, self.most = worker, 0
        self.pids: list[int] = []
        self._listed = 0.0

    def measure(self) -> int:
        """Return the bytes held now; 0 where there is no /proc."""
        if time.monotonic() > self._listed + CHILDREN_SECONDS:
            self.pids, self._listed = _family(self.worker), time.monotonic()
        now = sum(map(_resident, self.pids))
        self.most = max(self.most, now)
        return now


def _family(pid: int) -> list[int]:
    """Return the pids of a process and its descendants."""
    pids = [pid]
    for known in pids:
        with contextlib.suppress(OSError):  # it has ended
            pids += [child for thread in os.listdir(f"/proc/{known}/task") for child in _children(known, thread)]
    return pids


def _resident(pid: int) -> int:
    """Return the bytes of a process's anonymous pages, in memory or swapped out; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith((b"RssAnon:", b"VmSwap:")))


def _watch(held: Held, memory: int, parent: int, wake: int, grace: float) -> int:
    """Wait for the worker; end it on a signal, a closed lifeline or too much memory. Return its code, or minus the signal."""
    worker = held.worker
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(LIFELINE, select.POLLIN)
    deadline = 0.0
    while True:
        ready = {number for number, _ in poll.poll(LOOK_MS)}
        if held.measure() > memory:
            _signal(worker, signal.SIGKILL)
        orders = _drain(wake) if wake in ready else set()
        if LIFELINE in ready:
            poll.unregister(LIFELINE)
        status = _reap(worker)
        if status is not None:
            return status
        if LEAVE in orders:
            _signal(worker, signal.SIGKILL)
        elif not deadline and (orders & STOP or LIFELINE in ready or os.getppid() != parent):
            deadline = time.monotonic() + grace
            _signal(worker, signal.SIGTERM)
            _signal(worker, signal.SIGCONT)  # a suspended process does not handle SIGTERM
        elif deadline and time.monotonic() > deadline:
            _signal(worker, signal.SIGKILL)


def _hidden() -> list[tuple[re.Pattern[str], str]]:
    """Read the patterns of secrets from the lifeline; [] if the parent has died."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(LIFELINE, 1)):
        line += byte
    return [(re.compile(pattern), shown) for pattern, shown in json.loads(line or b"[]")]


def _copy_without(hidden: list[tuple[re.Pattern[str], str]], read: int, write: int) -> threading.Thread:
    """Start a thread that copies the worker's output to the log without secrets."""
    os.close(write)

    def copy() -> None:
        rest = b""
        while chunk := os.read(read, 1 << 16):
            whole, end, rest = _parted(rest + chunk)
            _log_without(hidden, whole + end)
        _log_without(hidden, rest)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def _parted(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Split output into (whole lines, end of the last line, rest)."""
    for end in (b"\n", b"\r"):
        if end in text:
            return text.rpartition(end)
    # a rest too long for a line counts as a line
    return (text, b"", b"") if len(text) > LONGEST_LINE else (b"", b"", text)


def _log_without(hidden: list[tuple[re.Pattern[str], str]], line: bytes) -> None:
    text = line.decode("utf-8", "surrogateescape")
    for pattern, shown in hidden:
        text = pattern.sub(shown, text)
    written = memoryview(text.encode("utf-8", "surrogateescape"))
    with contextlib.suppress(OSError):  # when the disk is full, the log is lost, but the stage goes on
        while written:
            written = written[os.write(LOG, written) :]


def _start(work: list[str] | Callable[[], None], output: int, own: list[int]) -> int:
    """Fork the worker in a session of its own, and return its pid. own: descriptors that it closes."""
    guard = os.getpid()
    worker = os.fork()
    if worker:
        return worker
    try:
        os.setsid()
        die_with_parent(guard)  # in case the guard itself is killed
        # before others when the machine has no memory left (Linux)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        if isinstance(work, list):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores SIGPIPE, and exec would keep that
        os.dup2(EVENTS, WORKER_EVENTS)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if isinstance(work, list):
            os.execv(work[0], work)
        signal.set_wakeup_fd(-1)
        for descriptor in own:
            os.close(descriptor)
        work()
    except OSError as error:
        os.write(LOG, f"can't start the worker: {error}\n".encode())
    os._exit(127)


def _reap(worker: int) -> int | None:
    """Reap every child that has ended; return the worker's status if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                status = os.waitstatus_to_exitcode(ended[1])
    return status


def _sweep(worker: int, grace: float) -> None:
    """End the processes that the worker left."""
    # its process group and, on Linux, all descendants: orphans become the guard's children
    for order, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, LEFTOVER_GRACE)):
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        if _living(worker):
            _signal(worker, order)
        while _living(worker) and time.monotonic() < deadline:
            for child in set(_children()) - signalled:  # grandchildren become children as their parents end
                signalled.add(child)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, order)
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


def _children(pid: int | str = "self", thread: int | str = "") -> list[int]:
    """Return the children of a thread of a process, by default of this process's first (Linux), else []."""
    try:
        pids = os.open(f"/proc/{pid}/task/{thread or os.getpid()}/children", os.O_RDONLY)
    except OSError:
        return []
    try:
        return [int(pid) for pid in os.read(pids, 1 << 16).split()]
    finally:
        os.close(pids)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _wake_on_signals() -> tuple[int, int]:
    """Return a pipe from which the numbers of arriving signals, SIGCHLD too, can be read."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (*STOP, LEAVE, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return read, write


def _drain(wake: int) -> set[int]:
    with contextlib.suppress(BlockingIOError):
        return set(os.read(wake, 4096))
    return set()


def _say(fields: dict[str, int]) -> None:
    """Write one JSON line to the event pipe."""
    with contextlib.suppress(OSError):
        # after a line break: a killed worker may have left half a line
        os.write(EVENTS, b"\n" + json.dumps({"guard": fields}).encode() + b"\n")


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends (Linux). Exits with 1 if `parent` has ended already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # the parent may have ended before the call
    if os.getppid() != parent:
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    """Call Linux's prctl; elsewhere lifeline and process group alone end the child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
