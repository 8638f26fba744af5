"""The worker: calls the stage function, writes events as JSON lines to descriptor 3, and the result beside the call.

SIGTERM raises Interrupted unless the stage handles it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import NoReturn

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ErrorDocument, Interrupted, MachineError, ProcessFailed, TrnflowError, of_machine
from trnflow.tasks.keys.file_audit import watch_process
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.launch.call import Call, resolve
from trnflow.tasks.launch.guard import WORKER_EVENTS
from trnflow.tasks.launch.memory import takes_less
from trnflow.tasks.launch.phases import run_phase
from trnflow.tasks.launch.ranks import enter, leave, run_ranks
from trnflow.tasks.launch.warm_parents import PARTIAL_ROOT
from trnflow.tasks.launch.watched import pass_permit_on
from trnflow.tasks.stage import Partial, Workdir, stage_of
from trnflow.tasks.system.redaction import add_secret, add_secrets_of, scrub, scrub_all
from trnflow.tasks.system.whole_file import write_whole

GPU_IS_FULL = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Texts of PyTorch's allocator, of the driver and of cuBLAS."""


def run(file: str) -> None:
    """Run the call of a file, write its result, and exit with 0 or 1."""
    _exit(main(file))


def main(file: str) -> int:
    """Run the call of a file, or its ranks, and write `Call.result`. Return 1 if the result is an error, else 0."""
    faulthandler.enable()
    signal.signal(signal.SIGTERM, _interrupt)
    call = _load(file)
    call.scratch.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(call.scratch)  # for temporary files of this process and its children
    Path(file).unlink()  # the config may hold a URL with credentials
    document = _outcome(call, Events(WORKER_EVENTS)) if call.ranks == 1 else _lead(call)
    write_whole(call.result, json.dumps(document))
    return int("error" in document)


def _exit(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # at once: some libraries hang or crash when they unload
    os._exit(status)


def _load(file: str) -> Call:
    """Read the call, and register its secrets."""
    call = Call.load(Path(file))
    for name in call.secret:
        add_secret(os.environ.get(name, ""))
    add_secrets_of(os.environ.get(PARTIAL_ROOT, ""))
    return call


def _lead(call: Call) -> Meta:
    """Run all ranks of the stage, and return the result of rank 0."""
    leader = os.getpid()

    def work(rank: int) -> None:
        enter(rank, leader, call.ranks_folder, _interrupt)
        # the others would report the same events
        document = _outcome(call, Events(WORKER_EVENTS) if rank == 0 else lambda event: None)
        leave(rank, call.ranks_folder, document)
        _exit(int("error" in document))

    shutil.rmtree(call.ranks_folder, ignore_errors=True)
    try:
        return run_ranks(work, call.ranks, call.ranks_folder, of_rank_0=[WORKER_EVENTS])
    finally:
        shutil.rmtree(call.ranks_folder, ignore_errors=True)


def _outcome(call: Call, emit: Callable[[Meta], None]) -> Meta:
    """Call the stage function; return {"meta"}, or {"error", "details"} without secrets."""
    sys.path[:0] = [folder for folder in call.search if folder not in sys.path]
    pass_permit_on(call)
    try:
        with watch_process(call.permit) if call.permit else nullcontext():
            meta = _run(call, emit)
        json.dumps(meta, allow_nan=False)
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return {"error": scrub_all(_described(error, call)), "details": scrub(traceback.format_exc())}
    return {"meta": meta}


def _run(call: Call, emit: Callable[[Meta], None]) -> Meta:
    function = resolve(call.function)
    config = resolve(call.config_type).model_validate_json(json.dumps(call.config))
    call.out.mkdir(parents=True, exist_ok=True)
    out = Workdir(call.out, call.scratch, emit, _partial(call, function))
    return run_phase(function, config, call.inputs, out, call.phase)


def _partial(call: Call, function: Callable[..., Meta]) -> Partial | None:
    """Return where the stage saves its state."""
    if not call.root or not stage_of(function).resumable:
        return None
    from trnflow.tasks.store import partial_state

    return partial_state(os.environ.get(PARTIAL_ROOT, call.root), call.home, key_of(call.document))


class Events:
    """Writes each event as a JSON line to a descriptor, from any thread, until the reader closes the pipe."""

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
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second SIGTERM is ignored: the guard's next signal is KILL
    raise Interrupted("stopped by a signal before the stage was done", "run the same command again")


def _described(error: BaseException, call: Call) -> ErrorDocument:
    if isinstance(error, TrnflowError):
        return error.to_json()
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(f"{call.name} was interrupted", "run the same command again").to_json()
    words = str(error).strip().partition("\n")[0] or "no message"
    # PyTorch's allocator raises a RuntimeError
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return MachineError(
            f"there is no memory left: {words}",
            f"{takes_less(call.name)}end other programs, or take a machine with more memory",
        ).to_json()
    if any(text in words for text in GPU_IS_FULL):
        return MachineError(
            f"the GPU has no memory left: {words.partition('. If reserved')[0]}",
            f"{takes_less(call.name)}or end other programs on the GPU; results and checkpoints stay",
        ).to_json()
    if (cause := of_machine(error)) is not None:
        return cause.to_json()
    return ProcessFailed(
        f"{call.name} failed with {type(error).__name__}: {words}", f"see {call.log}, or run again with --debug"
    ).to_json()


if __name__ == "__main__":
    run(sys.argv[1])
