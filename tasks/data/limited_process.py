"""Run templates and own code in a separate process, which the kernel ends when one row takes too long.

A server imports the code, which takes a quarter of a second, and forks for each call: all begin in the same state.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from mmap import mmap
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import ConfigError, DataError, Interrupted, ProcessFailed, TrnflowError, from_json
from trnflow.tasks.launch.python import WITHOUT_THREADS, python
from trnflow.tasks.system.child_environ import without_logins
from trnflow.tasks.system.terminal import one_line, printable

SECONDS = 5.0
"""Processor time that one rendering may take, in seconds."""

MEMORY = 512 << 20
"""Bytes by which the process may grow in LOOK_EVERY renderings of a template."""

OWN_MEMORY = 4 << 30
"""The same for own code, which the user has written or installed."""

LOOK_EVERY = 128
"""The number of renderings after which the memory limit is set again."""

PLACE = 256
"""Bytes of the shared file with the name of the row in work. One more says whether the call has answered."""

IDLE = 2.0
"""Seconds that a server waits for its next call, unless `keep_servers` was called."""

LOOK_MS = 50
"""Milliseconds between two checks whether a call ended without an answer."""

PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "TRNFLOW_PERMIT")
"""The variables that own code gets: none of them changes what a function returns, and none is a secret."""

PLAIN = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"}

WATCHED = "trnflow.tasks.launch.watched:watched"
"""Named, not imported: it checks reads, and is in no key."""


def keep_servers() -> None:
    """Let each server that starts from now on wait for calls as long as this process lives: for one that answers requests."""
    global _waits
    _waits = -1.0  # poll's word for no end


def call_limited(function: str, arguments: Meta) -> Meta:
    """Return the JSON object of "module:name"(arguments, limit) in a new process; `limit(row's name)` gives SECONDS. Raises
    the function's own TrnflowError, ConfigError after the limit, Interrupted, ProcessFailed.

    arguments: with `imports`, names of modules that are imported once for all calls.
    """
    return _called(function, "", arguments, without_logins(os.environ), None)


def call_own(
    function: str, arguments: Meta, environment: Mapping[str, str] = PLAIN, folder: Path | None = None
) -> Meta:
    """Do what `call_limited` does for a function that calls own code: watched, with few variables and no secrets.

    arguments: `hook`, the setting that names the code, among them. Raises DataError, too, for a row that took too long,
    or ended the process.
    """
    variables = {name: value for name in PASSED_ON if (value := os.environ.get(name)) is not None}
    return _called(function, WATCHED, arguments, {**variables, **environment}, folder)


def _called(function: str, around: str, arguments: Meta, environment: Mapping[str, str], folder: Path | None) -> Meta:
    variables = {**environment, **WITHOUT_THREADS}
    idle = _idle[function, around, tuple(sorted(variables.items())), folder]
    server = answer = None
    with suppress(IndexError):
        while answer is None:  # a server that waited too long has ended
            server = idle.pop()
            answer = server.call(arguments)
    if server is None or answer is None:
        server = _Server(function, around, variables, folder)
        answer = server.call(arguments) or {"status": server.end()}
    errors, row = server.take_errors(), server.take_row()
    # a folder is of one call, a proof's, and its server would never be found again
    if "status" in answer or folder:
        server.end()
    else:
        idle.append(server)
    if "status" in answer:
        raise _ended(answer["status"], row or "before the first row", errors, arguments.get("hook"))
    if errors:
        sys.stderr.write(printable(errors))
    for file in answer["modules"]:  # opened here, too: the file audit does not see the other process
        Path(file).open("rb").close()
    if "error" in answer:
        raise from_json(answer["error"])
    meta: Meta = answer["meta"]
    return meta


class _Server:
    """A process that makes one call after another."""

    def __init__(self, function: str, around: str, environment: Mapping[str, str], folder: Path | None) -> None:
        self._row, self._errors = TemporaryFile(), TemporaryFile("a+b")  # noqa: SIM115, open as long as the process
        self._row.truncate(PLACE + 1)
        numbers = str(self._row.fileno()), str(_waits)
        command = python("trnflow.tasks.data.limited_process:serve", function, around, *numbers)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, encoding="utf-8",
            pass_fds=[self._row.fileno()], env=environment, cwd=folder,
        )  # fmt: skip

    def call(self, arguments: Meta) -> Meta | None:
        """Return {"meta" or "error", "modules"}, or the "status" of a call without answer; None if the process has ended."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps(arguments) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        except BaseException:
            self.end()
            raise
        answer: Meta | None = json.loads(line) if line.endswith("\n") else None
        return answer

    def end(self) -> int:
        """End the process and its call, and return its exit status."""
        assert self._process.stdin and self._process.stdout
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait()

    def take_errors(self) -> str:
        """Return what the last call wrote to standard error."""
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")
        self._errors.truncate(0)
        return text

    def take_row(self) -> str:
        """Return the name of the last call's row in work."""
        row = os.pread(self._row.fileno(), PLACE, 0)  # a buffer would keep what the file held before
        os.pwrite(self._row.fileno(), bytes(PLACE), 0)
        return row.rstrip(b"\0").decode(errors="replace")


_idle: defaultdict[tuple[Any, ...], list[_Server]] = defaultdict(list)
_waits = IDLE


def serve(function: str, around: str, row: str, seconds: str) -> None:
    """Main function of a server: a line of arguments as JSON from stdin for each call, and a line of answer to stdout.

    around: "module:name" of the context in which the function is called; "" for none. row: the descriptor of the file for
    the name of the row in work. seconds: to wait for the next call.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    place, told = mmap(int(row), PLACE + 1), os.dup(1)
    os.dup2(2, 1)  # what a function prints is no answer
    called, context = _named(function), _named(around) if around else nullcontext
    memory = OWN_MEMORY if around else MEMORY
    requests = select.poll()
    requests.register(0, select.POLLIN)
    while requests.poll(float(seconds) * 1000) and (line := sys.stdin.readline()):
        arguments = json.loads(line)
        for name in arguments.get("imports", ()):
            import_module(name)
        gc.freeze()  # a collection in the call would copy all pages
        place[PLACE] = False
        if (call := os.fork()) == 0:
            _answer(called, context, arguments, place, told, memory)
        status = _status(call, requests)
        # own code may end its process with any status
        if status or not place[PLACE]:
            os.write(told, json.dumps({"status": status}).encode() + b"\n")
    os._exit(0)  # at once: unloading takes a tenth of a second


def _answer(
    called: Callable[..., Meta],
    context: Callable[[], AbstractContextManager[None]],
    arguments: Meta,
    row: mmap,
    told: int,
    memory: int,
) -> NoReturn:
    """Make a call, and end this process."""
    answer: dict[str, Json] = {}
    try:
        with context():
            answer["meta"] = called(arguments, Timer(row, memory=memory))
    except TrnflowError as error:
        answer["error"] = error.to_json()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    answer["modules"] = sorted(
        str(module.__file__)
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "trnflow" and module.__file__
    )
    # before the answer: the caller reads both when it has that
    sys.stderr.flush()
    with os.fdopen(told, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(answer) + "\n")
    row[PLACE] = True
    os._exit(0)


def _status(call: int, requests: select.poll) -> int:
    """Return the exit status of a call's process, which is ended if the caller is."""
    while (ended := os.waitpid(call, os.WNOHANG))[0] == 0:
        if (events := requests.poll(LOOK_MS)) and events[0][1] & select.POLLHUP:
            os.kill(call, signal.SIGKILL)
    return os.waitstatus_to_exitcode(ended[1])


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


class Timer:
    """Limits a rendering: `with timer(row's name):` ends the process after SECONDS of processor time; every LOOK_EVERY
    times its memory is limited to `memory` bytes more (Linux)."""

    def __init__(
        self, place: mmap, clock: int = signal.ITIMER_PROF, seconds: float = SECONDS, memory: int = MEMORY
    ) -> None:
        self._place, self._row, self._renderings, self._caller = place, "", 0, os.getppid()
        self._clock, self._seconds, self._memory = clock, seconds, memory

    def by_the_wall(self, seconds: float) -> Timer:
        """Return a timer that counts the time in which a row waits, too."""
        return Timer(self._place, signal.ITIMER_REAL, seconds, self._memory)

    def __call__(self, where: str) -> Timer:
        if os.getppid() != self._caller:  # the parent was killed: nobody reads the answer
            os._exit(1)
        if where != self._row:
            self._place[:PLACE] = where.encode()[:PLACE].ljust(PLACE, b"\0")
            self._row = where
        if self._renderings % LOOK_EVERY == 0:
            _limit_memory(self._memory)
        self._renderings += 1
        return self

    def __enter__(self) -> None:
        # Python can't be interrupted in `10 ** 10 ** 10`; a slow row ends the run, since speed must not decide which
        # rows stay
        signal.setitimer(self._clock, self._seconds)

    def __exit__(self, *error: object) -> None:
        signal.setitimer(self._clock, 0)


def _limit_memory(more: int) -> None:
    """Limit the process to `more` bytes than now; nothing without /proc."""
    import resource

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except OSError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))


def _ended(status: int, row: str, errors: str, hook: str | None) -> TrnflowError:
    if status == -signal.SIGPROF:
        return ConfigError(
            f"{row}: its template takes more than {SECONDS:g} s of processor time", "repair the template"
        )
    if status == -signal.SIGINT:
        return Interrupted("interrupted", "run the same command again")
    if hook and status == -signal.SIGALRM:
        seconds = f"{hook.partition('.')[0]}.row_seconds"
        return DataError(
            f"{row.removeprefix('split ')}: {hook} takes longer than {seconds}",
            f"correct the function for this row, or raise {seconds}",
        )
    if hook and not errors.strip():
        return DataError(f"{row.removeprefix('split ')}: {hook} ended its process: status {status}", "let it return")
    last_line = one_line(errors.strip().rpartition("\n")[2]) or f"status {status}"
    return ProcessFailed(f"{row}: the process that makes examples ended: {last_line}", "run again with --debug")
