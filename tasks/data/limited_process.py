"""Run templates and own code in a separate process, which the kernel ends when one row takes too long. Starting takes
half a second."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from mmap import mmap
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import ConfigError, DataError, Interrupted, ProcessFailed, TrnflowError, from_json
from trnflow.tasks.launch.python import python

SECONDS = 5.0
"""Processor time that one rendering may take, in seconds."""

MEMORY = 4 << 30
"""Bytes by which the process may grow in LOOK_EVERY renderings."""

LOOK_EVERY = 1024
"""The number of renderings after which the memory limit is set again."""

PLACE = 256
"""Bytes of the shared file with the name of the row in work."""

PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "TRNFLOW_PERMIT")
"""The variables that own code gets: none of them changes what a function returns, and none is a secret."""

PLAIN = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"}

WATCHED = "trnflow.tasks.launch.watched:watched"
"""Named, not imported: it checks reads, and is in no key."""


def call_limited(function: str, arguments: Meta) -> Meta:
    """Return the JSON object of "module:name"(arguments, limit) in a new process; `limit(row's name)` gives SECONDS. Raises
    the function's own TrnflowError, ConfigError after the limit, Interrupted, ProcessFailed."""
    return _called(function, "", arguments, None, None)


def call_own(
    function: str, arguments: Meta, environment: Mapping[str, str] = PLAIN, folder: Path | None = None
) -> Meta:
    """Do what `call_limited` does for a function that calls own code: watched, with few variables and no secrets.

    arguments: `hook`, the setting that names the code, among them. Raises DataError, too, for a row that took too long,
    or ended the process.
    """
    variables = {name: value for name in PASSED_ON if (value := os.environ.get(name)) is not None}
    return _called(function, WATCHED, arguments, {**variables, **environment}, folder)


def _called(
    function: str, around: str, arguments: Meta, environment: dict[str, str] | None, folder: Path | None
) -> Meta:
    with TemporaryFile() as place, _started(function, around, place.fileno(), environment, folder) as process:
        place.truncate(PLACE)
        try:
            output, errors = process.communicate(json.dumps(arguments))
        finally:
            process.kill()
        if process.returncode or not output:
            row = place.read().rstrip(b"\0").decode(errors="replace")
            raise _ended(process.returncode, row or "before the first row", errors, arguments.get("hook"))
    if errors:
        sys.stderr.write(errors)
    answer = json.loads(output)
    for file in answer["modules"]:  # opened here, too: the file audit does not see the other process
        Path(file).open("rb").close()
    if "error" in answer:
        raise from_json(answer["error"])
    meta: Meta = answer["meta"]
    return meta


def _started(
    function: str, around: str, place: int, environment: dict[str, str] | None, folder: Path | None
) -> subprocess.Popen[str]:
    """Start the process. place: the descriptor of the file for the name of the row in work."""
    command = python("trnflow.tasks.data.limited_process:serve", function, str(place), around)
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[place], text=True,
        encoding="utf-8", env=environment, cwd=folder,
    )  # fmt: skip


def serve(function: str, place: str, around: str) -> None:
    """Main function of the process: arguments as JSON from stdin, {"meta" or "error", "modules"} to stdout.

    around: "module:name" of the context in which the function is called; "" for none.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    answer: dict[str, Json] = {}
    arguments, told = json.load(sys.stdin), os.dup(1)
    os.dup2(2, 1)  # what a function prints is no answer
    try:
        context: Callable[[], AbstractContextManager[None]] = _named(around) if around else nullcontext
        with context():
            answer["meta"] = _named(function)(arguments, Timer(mmap(int(place), PLACE)))
    except TrnflowError as error:
        answer["error"] = error.to_json()
    answer["modules"] = sorted(
        str(module.__file__)
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "trnflow" and module.__file__
    )
    with os.fdopen(told, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(answer))
    sys.stderr.flush()
    os._exit(0)  # at once: unloading takes a tenth of a second


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


class Timer:
    """Limits a rendering: `with timer(row's name):` ends the process after SECONDS of processor time; every 1,024th
    time its memory is limited to 4 GiB more (Linux)."""

    def __init__(self, place: mmap, clock: int = signal.ITIMER_PROF, seconds: float = SECONDS) -> None:
        self._place, self._row, self._renderings, self._caller = place, "", 0, os.getppid()
        self._clock, self._seconds = clock, seconds

    def by_the_wall(self, seconds: float) -> Timer:
        """Return a timer that counts the time in which a row waits, too."""
        return Timer(self._place, signal.ITIMER_REAL, seconds)

    def __call__(self, where: str) -> Timer:
        if os.getppid() != self._caller:  # the parent was killed: nobody reads the answer
            os._exit(1)
        if where != self._row:
            self._place[:] = where.encode()[:PLACE].ljust(PLACE, b"\0")
            self._row = where
        if self._renderings % LOOK_EVERY == 0:
            _limit_memory()
        self._renderings += 1
        return self

    def __enter__(self) -> None:
        # Python can't be interrupted in `10 ** 10 ** 10`; a slow row ends the run, since speed must not decide which
        # rows stay
        signal.setitimer(self._clock, self._seconds)

    def __exit__(self, *error: object) -> None:
        signal.setitimer(self._clock, 0)


def _limit_memory() -> None:
    """Limit the process to MEMORY bytes more than now; nothing without /proc."""
    import resource

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except OSError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = pages * resource.getpagesize() + MEMORY
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
    last_line = errors.strip().rpartition("\n")[2] or f"status {status}"
    return ProcessFailed(f"{row}: the process that makes examples ended: {last_line}", "run again with --debug")
