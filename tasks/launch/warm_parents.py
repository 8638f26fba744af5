"""Start and keep warm parents (Linux), and let them fork the guards of stages."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import platform
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from trnflow.tasks.launch.python import WITHOUT_THREADS, python
from trnflow.tasks.launch.warm_parent import RESERVED, StageRequest
from trnflow.tasks.system.child_environ import without_logins
from trnflow.tasks.system.home import remove_temporary_folders, temporary_folder
from trnflow.tasks.system.process import ATTEMPT, STARTER, this_process

# the store's root may hold credentials: it goes to the stage's process by the environment, not in the call's file
PARTIAL_ROOT = "TRNFLOW_PARTIAL_ROOT"

# Variables that change within a process, and that no module imported before the fork reads: ours, Prefect's, MLflow's,
# pytest's and the shell's. Any other may be read on import, under names that nobody expects, such as CI and IS_FBCODE.
IRRELEVANT = re.compile(r"(TRNFLOW|PREFECT|MLFLOW|PYTEST)_\w*|PWD|OLDPWD|SHLVL|_")

# Variables that these modules read at each use, those of WITHOUT_THREADS aside, and PARTIAL_ROOT. XLA_FLAGS is none:
# torch_xla changes it on import. TORCHINDUCTOR_CACHE_DIR is set by peft's import.
LATE = ("CPU_NUM_DEVICES", "TOKENIZERS_PARALLELISM", "TORCHINDUCTOR_CACHE_DIR", ATTEMPT, PARTIAL_ROOT, *WITHOUT_THREADS)

LIGHT = ("pydantic.main", "pydantic.types", "pydantic._internal._generate_schema", "numpy")
"""Modules that every stage needs."""

HEAVY = {
    "jinja2": ("jinja2",),
    "tokenizers": ("tokenizers",),
    "pyarrow": ("pyarrow.parquet", "pyarrow.compute", "pandas"),  # pyarrow imports pandas when it converts a list
    "torch": ("torch",),
    "transformers": ("transformers.modeling_utils",),
    "torch-xla": ("torch_xla", "torch_xla.core.xla_model"),
    "scikit-learn": ("sklearn.metrics",),
    "matplotlib": ("matplotlib.backends.backend_agg", "matplotlib.figure"),
    "peft": ("peft",),
}
"""{distribution: modules to import for a stage that uses it}"""

MOST_PARENTS = 4
PATIENCE = 120.0
"""Seconds that a warm parent may take to import modules."""


def modules_for(distributions: Iterable[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the modules that a stage's warm parent imports; () off Linux on x86-64, or if PJRT_DEVICE is not the
    CPU."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or environ.get("PJRT_DEVICE", "CPU") != "CPU":
        return ()
    names = {*distributions} - ({"torch-xla"} if environ.get("USE_TORCH_XLA") == "0" else set())
    return (*LIGHT, *(module for name, modules in HEAVY.items() if name in names for module in modules))


class ForkedGuard:
    """A guard that a warm parent forked, with the methods of `Popen` that `local` calls."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self._poll = select.poll()
        self._poll.register(pidfd, select.POLLIN)

    def poll(self) -> int | None:
        """Return None while the guard runs, then 0: its exit status is unknown."""
        return 0 if self._poll.poll(0) else None

    def wait(self) -> int:
        """Wait for the guard's end; return 0."""
        while not self._poll.poll(500):
            pass
        return 0

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def __del__(self) -> None:
        os.close(self._pidfd)


class WarmParent:
    """A child process that imports modules and forks guards. The constructor does not wait for it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.settimeout(0.2)  # a short timeout, so that an exception sent to this thread is raised soon
        with theirs:
            self._process = subprocess.Popen(
                python("trnflow.tasks.launch.warm_parent:serve", str(theirs.fileno())),
                env={**environ, **_place(), ATTEMPT: "-" * (RESERVED - 1), **WITHOUT_THREADS},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def preload(self, modules: tuple[str, ...]) -> None:
        """Let the warm parent import modules while it is idle."""
        with self._lock, contextlib.suppress(OSError):  # without them a stage starts later
            self._requests.send(json.dumps({"modules": modules}).encode())

    def start(self, request: StageRequest, descriptors: list[int]) -> ForkedGuard | None:
        """Let the warm parent fork a guard; return None if it has ended or can't fork. descriptors: the guard's stdin, stdout
        and stderr."""
        with self._lock:
            try:
                socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)
                answer, received, _, _ = self._answer()
            except BaseException as error:
                self.close()  # a late answer would be read as that to the next request
                if not isinstance(error, OSError):
                    raise
                return None
        return ForkedGuard(received[0]) if answer.isdigit() else None

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
        """Kill the warm parent and wait for its end; its guards end their stages."""
        self._requests.close()
        self._process.kill()
        self._process.wait()


_parents: dict[frozenset[tuple[str, str]], WarmParent] = {}
_lock = threading.Lock()


@atexit.register
def close_all() -> None:
    """Kill all warm parents, and remove what they left."""
    for parent in _parents.values():
        parent.close()
    remove_temporary_folders()


def _place() -> dict[str, str]:
    # torch's import writes a folder, which it would remove at an ordinary exit alone
    folder = temporary_folder()
    return {"TMPDIR": str(folder)} if folder else {}


def warm_parent(environ: Mapping[str, str]) -> WarmParent:
    """Return a running warm parent with these variables, LATE and IRRELEVANT aside; start one if there is none."""
    # libraries read most variables on import, so each set of them needs a parent of its own
    early = {name: value for name, value in environ.items() if name not in LATE}
    variables = frozenset((name, value) for name, value in early.items() if not IRRELEVANT.fullmatch(name))
    with _lock:
        parent = _parents.pop(variables, None)
        if parent is None or parent.ended:
            parent = WarmParent(early)
        _parents[variables] = parent  # the first entry is the least recently used
        while len(_parents) > MOST_PARENTS:
            _parents.pop(next(iter(_parents))).close()
        return parent


def preload(stages: Iterable[tuple[Mapping[str, str], tuple[str, ...]]]) -> None:
    """Start the warm parents of stages that will run later. stages: (variables, modules) of each."""
    for variables, modules in stages:
        if modules:
            warm_parent(process_environ(variables)).preload(modules)


def process_environ(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a stage's environment: this process's without logins of Prefect, with the stage's variables and TRNFLOW_STARTER."""
    return {**without_logins(os.environ), "PYTHONUNBUFFERED": "1", STARTER: this_process().tag, **variables}


def start_guard(
    entry: str, arguments: list[str], environ: Mapping[str, str], modules: tuple[str, ...], grace: float,
    memory: int, descriptors: list[int],
) -> ForkedGuard | None:  # fmt: skip
    """Fork a guard and its worker, as a `StageRequest` says, from a warm parent; None if that has ended or can't fork.

    modules: what the warm parent imports first; descriptors: the guard's stdin (lifeline), stdout (events), stderr (log).
    """
    parent = warm_parent(environ)
    irrelevant = filter(IRRELEVANT.fullmatch, {*parent.environ, *environ})
    late = {name: environ.get(name) for name in (*LATE, *irrelevant)}
    request = StageRequest(
        entry=entry, arguments=arguments, modules=modules, grace=grace, memory=memory, folder=os.getcwd(),
        attempt=ATTEMPT, environ=late,
    )  # fmt: skip
    return parent.start(request, descriptors)
