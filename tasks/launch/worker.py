"""The process a stage runs in: `python -m tasks.launch.worker SPEC.json`, started by the guard.

It calls the spec's function, sends what the stage says as JSON lines down descriptor 3, and writes the result beside
the spec, atomically. SIGTERM raises Interrupted in the stage (which may install a handler of its own, to save first).
A stage of several ranks is called in a process for each of them (`tasks.launch.ranks`), of which rank 0 speaks.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from tasks.artifact import Meta
from tasks.errors import Interrupted, ProcessFailed, TrnflowError
from tasks.launch.guard import WORKER_EVENTS
from tasks.launch.job import JobSpec, resolve
from tasks.launch.python import python
from tasks.launch.ranks import enter, leave, run_ranks
from tasks.stage import Partial, Workdir
from tasks.witness import watch_process


def run(file: str) -> None:
    """`main`, then leave at once: the result is on disk, and a runtime may hang or crash as it unloads."""
    status = main(file)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(file: str) -> int:
    """0 when the stage succeeded, 1 when the result holds an error."""
    faulthandler.enable()
    signal.signal(signal.SIGTERM, _interrupt)
    spec = JobSpec.load(Path(file))
    document = _call(spec, Events(WORKER_EVENTS)) if spec.ranks == 1 else _lead(spec)
    _write(spec.result, json.dumps(document))
    return int("error" in document)


def rank(file: str, number: str, parent: str) -> None:
    """One rank of a stage, in a process that `main` started; it leaves as `run` does."""
    faulthandler.enable()
    spec, me = JobSpec.load(Path(file)), int(number)
    enter(me, int(parent), spec.ranks_folder, _interrupt)
    document = _call(spec, Events(WORKER_EVENTS) if me == 0 else _unheard)
    leave(me, spec.ranks_folder, document)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int("error" in document))


def _lead(spec: JobSpec) -> Meta:
    """Run the stage's ranks; the result is that of rank 0."""

    def command(number: int) -> list[str]:
        return python("tasks.launch.worker:rank", str(spec.file), str(number), str(os.getpid()))

    shutil.rmtree(spec.ranks_folder, ignore_errors=True)
    try:
        return run_ranks(command, spec.ranks, spec.ranks_folder, pass_fds=[WORKER_EVENTS])
    finally:
        shutil.rmtree(spec.ranks_folder, ignore_errors=True)


def _call(spec: JobSpec, emit: Callable[[Meta], None]) -> Meta:
    """{"meta": what the stage returned}, or {"error": ..., "details": traceback}."""
    sys.path[:0] = [folder for folder in spec.search if folder not in sys.path]
    try:
        with watch_process(spec.permit) if spec.permit else nullcontext():
            meta = _run(spec, emit)
        json.dumps(meta, allow_nan=False)
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return {"error": _described(error, spec), "details": traceback.format_exc()}
    return {"meta": meta}


def _run(spec: JobSpec, emit: Callable[[Meta], None]) -> Meta:
    function = resolve(spec.function)
    config = resolve(spec.config_type).model_validate_json(json.dumps(spec.config))
    spec.out.mkdir(parents=True, exist_ok=True)
    spec.scratch.mkdir(parents=True, exist_ok=True)
    out = Workdir(spec.out, spec.scratch, emit, _partial(spec))
    meta: Meta = function(config, **spec.inputs, **spec.after, out=out)
    return meta


def _unheard(event: Meta) -> None:
    """What another rank than 0 says: the same."""


def _partial(spec: JobSpec) -> Partial | None:
    if spec.partial is None:
        return None
    from tasks.store import partial_state

    return partial_state(spec.partial["root"], spec.partial["home"], spec.partial["key"])


class Events:
    """Writes one JSON line an event; safe from any thread, and silent once nobody listens any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._lock = threading.Lock()
        os.set_inheritable(descriptor, False)

    def __call__(self, event: Meta) -> None:
        line = memoryview((json.dumps(event) + "\n").encode())
        with self._lock:
            try:
                while line and self._descriptor is not None:
                    line = line[os.write(self._descriptor, line) :]
            except BrokenPipeError:
                self._descriptor = None


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: the guard's next signal is KILL
    raise Interrupted("stopped by a signal before the stage was done", "run the same command again")


def _described(error: BaseException, spec: JobSpec) -> dict[str, Any]:
    if isinstance(error, TrnflowError):
        return error.to_json()
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(f"{spec.name} was interrupted", "run the same command again").to_json()
    said = str(error).strip().partition("\n")[0] or "no message"
    return ProcessFailed(
        f"{spec.name} failed with {type(error).__name__}: {said}", f"see {spec.log}, or run again with --debug"
    ).to_json()


def _write(file: Path, text: str) -> None:
    aside = file.with_name(f"{file.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)


if __name__ == "__main__":
    run(sys.argv[1])
