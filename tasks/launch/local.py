"""Run a stage in a process of its own, on this machine, under a guard that leaves nothing behind.

`run_job` costs two interpreter starts (see `guard` and `worker`) and blocks, passing on what the stage says
as it says it. Works from any thread. However the caller ends (Ctrl-C, SIGTERM, SIGKILL), the stage gets SIGTERM,
`grace_seconds` to save, and SIGKILL, with everything it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from tasks.artifact import Meta
from tasks.errors import Interrupted, ProcessFailed, TrnflowError, from_json
from tasks.launch import guard as guard_module
from tasks.launch.job import JobSpec
from tasks.launch.python import python
from tasks.lines import parsed

Emit = Callable[[Meta], None]

_running: set[Guarded] = set()
_lock = threading.Lock()


def run_job(spec: JobSpec, emit: Emit, *, grace_seconds: float = 30) -> Meta:
    """Run `spec` and return the stage's metadata; `emit` gets each event while it runs, in this thread.

    Raises the stage's own TrnflowError, with the traceback of its process as attribute `details`; ProcessFailed when
    the process died without a word; Interrupted after Ctrl-C or `interrupt_jobs`. An exception raised in this thread
    while it waits, or by `emit`, ends the stage first and then goes on.
    """
    spec.result.unlink(missing_ok=True)
    spec.save()
    with Guarded(spec, grace_seconds) as job:
        try:
            job.follow(emit)
        except KeyboardInterrupt:
            job.interrupt()
            job.drain(emit)
        except BaseException:
            job.interrupt()
            job.drain(lambda event: None)
            raise
        return job.result()


def interrupt_jobs() -> int:
    """End every job of this process, from a signal handler or another thread; returns how many. Their `run_job` raises
    Interrupted once the stage has saved. A second call ends them at once."""
    with _lock:
        jobs = list(_running)
    for job in jobs:
        job.interrupt()
    return len(jobs)


class Guarded:
    """A guard process and the worker under it. As a context it is gone, with all its children, when left."""

    def __init__(self, spec: JobSpec, grace_seconds: float) -> None:
        self._spec = spec
        self._grace = grace_seconds
        self._interrupted = False
        self._worker: int | None = None
        self._status: int | None = None

    def __enter__(self) -> Guarded:
        worker = python("tasks.launch.worker:run", str(self._spec.file))
        self._spec.log.parent.mkdir(parents=True, exist_ok=True)
        with self._spec.log.open("wb") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard_module.__file__, str(self._grace), *worker],
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._spec.environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                bufsize=0,
            )
        with _lock:
            _running.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with _lock:
            _running.discard(self)
        assert self._guard.stdin and self._guard.stdout
        self._guard.stdin.close()
        self._guard.wait()
        self._guard.stdout.close()
        if self._status is None and self._worker is not None:  # the guard itself was killed
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._worker, signal.SIGKILL)

    def interrupt(self) -> None:
        """Ask the stage to save and leave; asked twice, it is killed."""
        self._interrupted = True
        self._guard.terminate()

    def follow(self, emit: Emit) -> None:
        """Pass events on until the guard is gone."""
        for line in self._lines():
            event = parsed(line)
            if event is not None and "guard" in event:
                self._worker = event["guard"].get("worker", self._worker)
                self._status = event["guard"].get("exit")
            elif event is not None:
                emit(event)

    def drain(self, emit: Emit) -> None:
        """`follow` to the end, though Ctrl-C be pressed again (then the stage is killed)."""
        while True:
            try:
                return self.follow(emit)
            except KeyboardInterrupt:
                self.interrupt()

    def result(self) -> Meta:
        """The stage's metadata, or its error."""
        written = json.loads(self._spec.result.read_text(encoding="utf-8")) if self._spec.result.exists() else None
        if written is None:
            raise self._silent()
        if "error" in written:
            raise _rebuilt(written)
        if self._interrupted:
            raise self._stopped()
        meta: Meta = written["meta"]
        return meta

    def _lines(self) -> Iterator[bytes]:
        pipe = self._guard.stdout
        assert pipe
        os.set_blocking(pipe.fileno(), False)
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                ended = self._guard.poll() is not None
                # bounded, so that an exception sent to this thread is raised soon
                chunk = pipe.read(1 << 16) if ended or selector.select(0.2) else None
                if chunk == b"" or (ended and not chunk):
                    break
                *lines, rest = (rest + (chunk or b"")).split(b"\n")
                yield from lines
        self._guard.wait()

    def _silent(self) -> TrnflowError:
        if self._interrupted:
            return self._stopped()
        name, log = self._spec.name, self._spec.log
        if self._status is None:
            return ProcessFailed(f"the guard of {name} was killed", f"run it again; its log is {log}")
        how = f"exit code {self._status}" if self._status >= 0 else f"signal {_signal_name(-self._status)}"
        fix = f"read the whole log, {log}"
        if self._status == -signal.SIGKILL:
            fix = f"if the machine ran out of memory, lower the batch size or the number of workers; else {fix}"
        return ProcessFailed(f"the process of {name} died without a word ({how}){_tail(log)}", fix)

    def _stopped(self) -> TrnflowError:
        return Interrupted(f"{self._spec.name} was interrupted", "run the same command again")


def _rebuilt(written: Meta) -> TrnflowError:
    error = from_json(written["error"])
    error.details = written["details"]
    return error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _tail(log: Path, lines: int = 10) -> str:
    """The end of the log, for the message."""
    with log.open("rb") as handle:
        handle.seek(max(0, log.stat().st_size - 4096))
        said = handle.read().decode("utf-8", "replace").strip().splitlines()[-lines:]
    return "; it last said:\n  " + "\n  ".join(said) + "\n" if said else ""
