"""The worker: calls a job's stage function, writes events as JSON lines to descriptor 3, and the result beside the job.

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
from trnflow.tasks.launch.guard import WORKER_EVENTS
from trnflow.tasks.launch.job import Job, resolve
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
    """Run the job of a file, write its result, and exit with 0 or 1."""
    _exit(main(file))


def main(file: str) -> int:
    """Run the job of a file, or its ranks, and write `Job.result`. Return 1 if the result is an error, else 0."""
    faulthandler.enable()
    signal.signal(signal.SIGTERM, _interrupt)
    job = _load(file)
    job.scratch.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(job.scratch)  # for temporary files of this process and its children
    Path(file).unlink()  # the config may hold a URL with credentials
    document = _call(job, Events(WORKER_EVENTS)) if job.ranks == 1 else _lead(job)
    write_whole(job.result, json.dumps(document))
    return int("error" in document)


def _exit(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # at once: some libraries hang or crash when they unload
    os._exit(status)


def _load(file: str) -> Job:
    """Read the job, and register its secrets."""
    job = Job.load(Path(file))
    for name in job.secret:
        add_secret(os.environ.get(name, ""))
    add_secrets_of(os.environ.get(PARTIAL_ROOT, ""))
    return job


def _lead(job: Job) -> Meta:
    """Run all ranks of the stage, and return the result of rank 0."""
    leader = os.getpid()

    def work(rank: int) -> None:
        enter(rank, leader, job.ranks_folder, _interrupt)
        document = _call(job, Events(WORKER_EVENTS) if rank == 0 else _unheard)
        leave(rank, job.ranks_folder, document)
        _exit(int("error" in document))

    shutil.rmtree(job.ranks_folder, ignore_errors=True)
    try:
        return run_ranks(work, job.ranks, job.ranks_folder, of_rank_0=[WORKER_EVENTS])
    finally:
        shutil.rmtree(job.ranks_folder, ignore_errors=True)


def _call(job: Job, emit: Callable[[Meta], None]) -> Meta:
    """Call the stage function; return {"meta"}, or {"error", "details"} without secrets."""
    sys.path[:0] = [folder for folder in job.search if folder not in sys.path]
    pass_permit_on(job)
    try:
        with watch_process(job.permit) if job.permit else nullcontext():
            meta = _run(job, emit)
        json.dumps(meta, allow_nan=False)
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return {"error": scrub_all(_described(error, job)), "details": scrub(traceback.format_exc())}
    return {"meta": meta}


def _run(job: Job, emit: Callable[[Meta], None]) -> Meta:
    function = resolve(job.function)
    config = resolve(job.config_type).model_validate_json(json.dumps(job.config))
    job.out.mkdir(parents=True, exist_ok=True)
    out = Workdir(job.out, job.scratch, emit, _partial(job, function))
    return run_phase(function, config, job.inputs, out, job.phase)


# ranks other than 0 report the same events as rank 0
def _unheard(event: Meta) -> None:
    """Drop an event."""


def _partial(job: Job, function: Callable[..., Meta]) -> Partial | None:
    """Return where the stage saves its state."""
    if not job.root or not stage_of(function).resumable:
        return None
    from trnflow.tasks.store import partial_state

    return partial_state(os.environ.get(PARTIAL_ROOT, job.root), job.home, key_of(job.document))


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


def _described(error: BaseException, job: Job) -> ErrorDocument:
    if isinstance(error, TrnflowError):
        return error.to_json()
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(f"{job.name} was interrupted", "run the same command again").to_json()
    words = str(error).strip().partition("\n")[0] or "no message"
    # PyTorch's allocator raises a RuntimeError
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return MachineError(
            f"there is no memory left: {words}",
            f"{takes_less(job.name)}end other programs, or take a machine with more memory",
        ).to_json()
    if any(text in words for text in GPU_IS_FULL):
        return MachineError(
            f"the GPU has no memory left: {words.partition('. If reserved')[0]}",
            f"{takes_less(job.name)}or end other programs on the GPU; results and checkpoints stay",
        ).to_json()
    if (cause := of_machine(error)) is not None:
        return cause.to_json()
    return ProcessFailed(
        f"{job.name} failed with {type(error).__name__}: {words}", f"see {job.log}, or run again with --debug"
    ).to_json()


if __name__ == "__main__":
    run(sys.argv[1])
