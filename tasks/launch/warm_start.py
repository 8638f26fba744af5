"""Start and keep warm parents, and have them fork the guards of stage processes.

A warm parent (`trnflow.tasks.launch.warm_parent`) is a process that has imported slow libraries such as torch, so that a
process forked from it starts at once. A guard (`trnflow.tasks.launch.guard`) is the process that starts and ends a stage's
worker. Libraries read most environment variables when they are imported, so there is one parent for each set of
variables. Variables in LATE are read later, and can differ between the jobs of one parent. Linux only; elsewhere, or if
a parent can't fork, a stage starts in a new interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from trnflow.tasks.launch.python import python
from trnflow.tasks.launch.warm_parent import RESERVED
from trnflow.tasks.system.process import ATTEMPT, STARTER, this_process

PARTIAL_ROOT = "TRNFLOW_PARTIAL_ROOT"
"""The environment variable that passes the store's root to a stage's process: the root may contain credentials."""

IRRELEVANT = ("PYTEST_CURRENT_TEST", "PWD", "OLDPWD", "SHLVL", "_", "PREFECT_API_URL")
"""Environment variables that change from one command to the next, or during a command, and that no library of a stage
reads."""

WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""The environment variables that a warm parent is started with so that numpy, scipy and pyarrow start no threads when
they are imported. On x86-64 only numpy and scipy use OpenBLAS; the other variable belongs to pyarrow's allocator, which
then gives memory back in the threads that free it."""

LATE = ("CPU_NUM_DEVICES", "TOKENIZERS_PARALLELISM", ATTEMPT, PARTIAL_ROOT, *WITHOUT_THREADS, *IRRELEVANT)
"""Variables that can differ between the jobs of one warm parent: modules imported before the fork do not read them.

The exceptions are those of WITHOUT_THREADS. XLA_FLAGS can't be in this list: torch_xla changes it when it is imported."""

LIGHT = ("pydantic.main", "pydantic.types", "pydantic._internal._generate_schema", "numpy")
"""Modules that every stage needs."""

HEAVY = {
    "jinja2": ("jinja2",),
    "tokenizers": ("tokenizers",),
    "pyarrow": ("pyarrow.parquet", "pyarrow.compute", "pandas"),  # pyarrow imports pandas when it converts a list
    "torch": ("torch",),
    "transformers": ("transformers.modeling_utils",),
    "torch-xla": ("torch_xla", "torch_xla.core.xla_model"),
}
"""Distribution -> further modules that the warm parent of a stage that uses this distribution imports."""

MOST_PARENTS = 4
PATIENCE = 120.0
"""Seconds that a warm parent may take to import its modules."""


def modules_for(distributions: Iterable[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the modules that the warm parent of a stage (a process from which the stage's process is
    forked) has to import before it forks.

    Empty if the stage's process can't be forked from a warm parent and must start in a new interpreter: the machine is
    not Linux on x86-64, or PJRT_DEVICE names another device than the CPU, whose runtime does not support a fork.

    Args:
        distributions: Names of the Python distributions that the stage's code imports, such as torch.
        environ: The stage's environment variables.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64" or environ.get("PJRT_DEVICE", "CPU") != "CPU":
        return ()
    names = {*distributions} - ({"torch-xla"} if environ.get("USE_TORCH_XLA") == "0" else set())
    return (*LIGHT, *(module for name, modules in HEAVY.items() if name in names for module in modules))


class ForkedGuard:
    """A guard (the process that starts and ends a stage's process) that was forked by a warm parent, a process that has
    imported slow libraries. The class has the methods of `subprocess.Popen` that `trnflow.tasks.launch.local` calls, since a
    process that is not a child of this process has no Popen object.

    Args:
        pidfd: A Linux file descriptor that refers to the process.
    """

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self._poll = select.poll()
        self._poll.register(pidfd, select.POLLIN)

    def poll(self) -> int | None:
        """Return None while the guard (the process that starts and ends a stage's process) runs, and 0 when it has
        ended. The guard's real exit status is unknown here."""
        return 0 if self._poll.poll(0) else None

    def wait(self) -> int:
        """Wait until the guard (the process that starts and ends a stage's process) has ended. Always returns 0, since
        the guard's real exit status is unknown here."""
        while not self._poll.poll(500):
            pass
        return 0

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def __del__(self) -> None:
        os.close(self._pidfd)


class WarmParent:
    """A child process that imports slow modules once and then forks the guard of each stage (the process that starts
    and ends the stage's process), so that stages start at once. The constructor does not wait until the process runs.

    Args:
        environ: The environment variables of the process.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(0.2)  # a short timeout, so that an exception sent to this thread is raised soon
        with theirs:
            self._process = subprocess.Popen(
                python("trnflow.tasks.launch.warm_parent:serve", str(theirs.fileno())),
                env={**environ, ATTEMPT: "-" * (RESERVED - 1), **WITHOUT_THREADS},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def preload(self, modules: tuple[str, ...]) -> None:
        """Have the warm parent import modules while it has nothing else to do. Does not wait for it."""
        with self._lock, contextlib.suppress(OSError):  # without them a stage starts later
            self._requests.send(json.dumps({"modules": modules}).encode())

    def start(self, request: Mapping[str, Any], descriptors: list[int]) -> ForkedGuard | None:
        """Have the warm parent fork a guard, the process that starts and ends the process of one stage. Waits until the
        warm parent has imported the modules that the stage needs.

        Args:
            request: {"entry", "arguments", "modules", "grace": as the arguments of `start_guard`; "folder": the
                worker's working folder; "environ": {name: value} of variables to set, None to unset; "attempt": the
                name of the variable with the id of the attempt (try to run the stage)}.
            descriptors: The file descriptors that become the guard's stdin (lifeline), stdout (events) and stderr
                (log).

        Returns:
            The guard, or None if the warm parent has ended or can't fork; the stage then needs a new interpreter.
        """
        with self._lock:
            try:
                socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)
                said, received, _, _ = self._answer()
            except BaseException as error:
                self.close()  # a late answer would be read as that to the next request
                if not isinstance(error, OSError):
                    raise
                return None
        return ForkedGuard(received[0]) if said.isdigit() else None

    def _answer(self) -> tuple[bytes, list[int], int, Any]:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return socket.recv_fds(self._requests, 64, 1)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """Kill the warm parent and wait until it has ended. Stages that still run are ended, too: the guards that the
        warm parent forked end the stages' processes."""
        self._requests.close()
        self._process.kill()
        self._process.wait()


_parents: dict[frozenset[tuple[str, str]], WarmParent] = {}
_lock = threading.Lock()


@atexit.register
def _close_all() -> None:
    for parent in _parents.values():
        parent.close()


def warm_parent(environ: Mapping[str, str]) -> WarmParent:
    """Return a running warm parent (a process that has imported slow libraries, and from which stages' processes are
    forked) that was started with these environment variables; start one if there is none. The variables in the list
    LATE may differ, because they do not matter to the imports.

    If there are then more than 4 warm parents (MOST_PARENTS), the one that was used least recently is killed.
    """
    early = {name: value for name, value in environ.items() if name not in LATE}
    variables = frozenset(early.items())
    with _lock:
        found = _parents.pop(variables, None)
        if found is None or found.ended:
            found = WarmParent(early)
        _parents[variables] = found  # the first entry is the least recently used
        while len(_parents) > MOST_PARENTS:
            _parents.pop(next(iter(_parents))).close()
        return found


def preload(stages: Iterable[tuple[Mapping[str, str], tuple[str, ...]]]) -> None:
    """Start the warm parents of stages that will run later: processes from which the stages' processes are forked, and
    which import their modules while earlier stages run.

    Stages with equal environment variables share a warm parent. The variables in the list LATE may differ, because they
    do not matter to the imports.

    Args:
        stages: For each stage (its environment variables, the modules of its warm parent), in the order in which they
            run. A warm parent imports while the next stage is drawn from the iterable. Where there are no modules, no
            warm parent is started.
    """
    for variables, modules in stages:
        if modules:
            warm_parent(process_environ(variables)).preload(modules)


def process_environ(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a stage's process: that of this process, updated with the stage's variables, and with
    the variable TRNFLOW_STARTER, by which other processes can tell that this process started it. Sets nothing."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", STARTER: this_process().tag, **variables}


def start_guard(
    entry: str, arguments: list[str], environ: Mapping[str, str], modules: tuple[str, ...], grace: float,
    descriptors: list[int],
) -> ForkedGuard | None:  # fmt: skip
    """Start the process of one stage, the worker, under a guard, a process that ends the worker if this process dies. A
    warm parent (a process that has imported slow libraries) forks the guard, and the guard forks the worker. A warm
    parent is started if none has the right environment variables.

    Args:
        entry: The function that the worker calls, as "module:function".
        arguments: The arguments of that function.
        environ: The environment variables of the worker.
        modules: The modules that the warm parent imports before it forks, if it has not yet.
        grace: Seconds between SIGTERM and SIGKILL when the worker is stopped.
        descriptors: The file descriptors that become the guard's stdin, stdout and stderr.

    Returns:
        The guard, or None if the warm parent has ended or can't fork.
    """
    request = {
        "entry": entry,
        "arguments": arguments,
        "modules": modules,
        "grace": grace,
        "folder": os.getcwd(),
        "attempt": ATTEMPT,
        "environ": {name: environ.get(name) for name in LATE},
    }
    return warm_parent(environ).start(request, descriptors)
