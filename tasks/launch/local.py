"""Run a stage in a process on this machine, under a guard that leaves no process behind."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import Interrupted, MachineError, ProcessFailed, Terminated, TrnflowError, from_json
from trnflow.tasks.launch import guard as guard_module
from trnflow.tasks.launch.call import Call
from trnflow.tasks.launch.memory import memory_limit, shown, takes_less
from trnflow.tasks.launch.python import python
from trnflow.tasks.launch.warm_parents import ForkedGuard, process_environ, start_guard
from trnflow.tasks.system.json_objects import parsed
from trnflow.tasks.system.process import how_ended
from trnflow.tasks.system.redaction import substitutions

Emit = Callable[[Meta], None]

# for a stage that did not announce that it saves its state: compilers may ignore SIGTERM for minutes
STOP_SECONDS = 3.0
# bytes: where fewer are free, a process that died without a result could not write its error
LEAST_SPACE = 1 << 16


def run_call(call: Call, emit: Emit) -> Meta:
    """Run a stage in a process, wait for its end, and return its metadata.

    emit: called with each event, in this thread.

    Raises:
        TrnflowError: The stage's own error, with its traceback in `details`.
        MachineError: It took too much memory, or more than the call's `seconds`.
        ProcessFailed: The process died without a result.
        Interrupted: Ctrl-C stopped the stage.
    """
    call.result.unlink(missing_ok=True)
    call.save()
    with Guarded(call) as guarded:
        try:
            guarded.follow(emit)
        except KeyboardInterrupt as error:
            guarded.interrupt()
            guarded.drain(emit, is_pressed=not isinstance(error, Terminated))
        # `emit`, too, may raise: the stage is stopped first
        except BaseException:
            guarded.interrupt()
            guarded.drain(lambda event: None)
            raise
        return guarded.result()


class Guarded:
    """Starts a guard and its worker; at the context's end all processes of the stage have ended."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._interrupted = False
        self._saves = False
        self._is_late = False
        self._deadline = math.inf if call.seconds is None else time.monotonic() + call.seconds
        self._worker: int | None = None
        self._status: int | None = None
        self._memory = memory_limit(call.memory_gib)
        self._held = 0

    def __enter__(self) -> Guarded:
        self._call.log.parent.mkdir(parents=True, exist_ok=True)
        lifeline, self._lifeline = os.pipe()
        self._events, events = os.pipe()
        os.set_blocking(self._events, False)
        with self._call.log.open("ab") as log:
            try:
                self._guard = self._start([lifeline, events, log.fileno()])
            except BaseException:
                os.close(self._lifeline)
                os.close(self._events)
                raise
            finally:
                os.close(lifeline)
                os.close(events)
        with contextlib.suppress(BrokenPipeError):  # the guard has died already; `result` raises the error
            os.write(self._lifeline, json.dumps(substitutions()).encode() + b"\n")
        return self

    def _start(self, descriptors: list[int]) -> subprocess.Popen[bytes] | ForkedGuard:
        """Start the guard with these descriptors as its stdin, stdout and stderr."""
        environ = process_environ(self._call.environ)
        entry, arguments = "trnflow.tasks.launch.worker:run", [str(self._call.file)]
        if self._call.preload:
            forked = start_guard(
                entry, arguments, environ, self._call.preload, self._call.grace_seconds, self._memory, descriptors
            )
            if forked is not None:
                return forked
        guard = [sys.executable, "-I", "-S", guard_module.__file__, str(self._call.grace_seconds), str(self._memory)]
        stdin, stdout, stderr = descriptors
        return subprocess.Popen(
            [*guard, *python(entry, *arguments)], env=environ, stdin=stdin, stdout=stdout, stderr=stderr,
            start_new_session=True,
        )  # fmt: skip

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._lifeline)
        self._guard.wait()
        os.close(self._events)
        if self._status is None and self._worker is not None:  # the guard itself was killed
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._worker, signal.SIGKILL)

    def interrupt(self) -> None:
        """Let the guard send SIGTERM to the stage. A stage that does not save has STOP_SECONDS."""
        self._interrupted = True
        self._deadline = math.inf if self._saves else time.monotonic() + STOP_SECONDS
        self._guard.send_signal(signal.SIGTERM)

    def leave(self) -> None:
        """Let the guard kill the stage."""
        self._interrupted, self._deadline = True, math.inf
        self._guard.send_signal(guard_module.LEAVE)

    def follow(self, emit: Emit) -> None:
        """Pass the stage's events to `emit` until stage and guard have ended."""
        for line in self._lines():
            event = parsed(line)
            if event is not None and "guard" in event:
                self._worker = event["guard"].get("worker", self._worker)
                self._status = event["guard"].get("exit")
                self._held = event["guard"].get("memory", 0)
            elif event is not None and "saves" in event:
                self._saves = True
                if self._interrupted:  # it began to save after it was asked to stop
                    self._deadline = math.inf
            elif event is not None:
                emit(event)

    def drain(self, emit: Emit, *, is_pressed: bool = False) -> None:
        """Pass events on until stage and guard have ended; a second Ctrl-C kills the stage. is_pressed: after the first."""
        while True:
            try:
                return self.follow(emit)
            except Terminated:
                continue
            except KeyboardInterrupt:
                if is_pressed:
                    self.leave()
                is_pressed = True

    def result(self) -> Meta:
        """Return the metadata of the ended stage.

        Raises TrnflowError (the stage's own, ProcessFailed without a result, Interrupted), or OSError when the disk is
        full.
        """
        written = json.loads(self._call.result.read_text(encoding="utf-8")) if self._call.result.exists() else None
        if self._is_late and "meta" not in (written or {}):
            raise self._stopped()
        if written is None:
            raise self._silent()
        if "error" in written:
            error = from_json(written["error"])
            error.details = written["details"]
            raise error
        if self._interrupted:
            raise self._stopped()
        meta: Meta = written["meta"]
        return meta

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            while True:
                ended = self._guard.poll() is not None
                if time.monotonic() > self._deadline:
                    self._is_late = self._is_late or not self._interrupted
                    if self._interrupted:
                        self.leave()
                    else:
                        self.interrupt()
                # with a timeout, so that an exception sent to this thread is raised soon
                chunk = self._read() if ended or selector.select(0.2) else None
                if chunk == b"" or (ended and not chunk):
                    break
                *lines, rest = (rest + (chunk or b"")).split(b"\n")
                yield from lines
        self._guard.wait()

    def _read(self) -> bytes | None:
        """Read from the event pipe: b"" at its end, None when nothing is there."""
        try:
            return os.read(self._events, 1 << 16)
        except BlockingIOError:
            return None

    def _silent(self) -> TrnflowError:
        """Return the error of a process that has died without a result."""
        if self._interrupted:
            return self._stopped()
        name, log = self._call.name, self._call.log
        place = os.statvfs(self._call.file.parent)
        if place.f_bavail * place.f_frsize < LEAST_SPACE:  # the process could not write its error
            raise OSError(errno.ENOSPC, "No space left on device", str(self._call.file.parent))
        if self._status is None:
            return ProcessFailed(f"the guard of {name} was killed", f"run it again; its log is {log}")
        if self._held > self._memory:
            return MachineError(
                f"{name} took {shown(self._held)} of memory, more than the {shown(self._memory)} it may take",
                f"{takes_less(name)}raise launch.memory_gib, or take a machine with more memory",
            )
        if self._status == -signal.SIGKILL:
            return MachineError(
                f"{name} was killed (signal SIGKILL; so the kernel ends processes where no memory is left); it held up to "
                f"{shown(self._held)}{_tail(log)}",
                f"{takes_less(name)}end other programs, or take a machine with more memory; its log is {log}",
            )
        return ProcessFailed(
            f"the process of {name} died without a word ({how_ended(self._status)}){_tail(log)}",
            f"read the whole log, {log}",
        )

    def _stopped(self) -> TrnflowError:
        if self._is_late:
            return MachineError(
                f"{self._call.name} took longer than the {self._call.seconds:g} seconds that it may take",
                "correct the sizes of the model, or end other programs and run it again",
            )
        return Interrupted(f"{self._call.name} was interrupted", "run the same command again")


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, log.stat().st_size - 16384))
            lines = handle.read().decode("utf-8", "replace").strip().splitlines()
    except FileNotFoundError:  # other runs of this home have removed it as one of the oldest
        return ""
    # faulthandler names hundreds of modules in its last line, and so many that nothing else would be shown
    words = "\n".join(line for line in lines if not line.startswith("Extension modules: "))[-4096:].splitlines()[-20:]
    return "; it last said:\n  " + "\n  ".join(words) + "\n" if words else ""
