"""Make one part of a stage in a worker process, on this machine or on another one that reaches the same store.

A part is a piece of the stage's work, such as some of the rows. The flow is the process that runs the pipeline and
sends out the jobs. A job is the JSON description of a part: names of functions, the config, digests of inputs. The
worker opens the store, fetches the inputs (each input once in the life of the worker's process), checks that its code
and library versions are those in the part's key document (the JSON of everything that decides the part's result), runs
the part in a process of its own, and publishes the result: writes it to the store, with the record by which it is
found. The flow then reads the result from the store, so no large data passes through Prefect. If the store is remote, a
worker on the flow's machine moves its files to the flow's work folder, so they are not downloaded.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from trnflow.flows.runner.attempts import run_of
from trnflow.flows.runner.job import Job, publish, record_of
from trnflow.flows.runner.work_folders import attempt_log, clear, workfolder, workplace
from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.errors import CodeError, StoreError
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.launch.job import Step, name_of, portable, resolve
from trnflow.tasks.launch.local import STOP_SECONDS
from trnflow.tasks.stage import Stage, stage_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import SHARD

SHARED = "shared"
"""The name of the folder, in the flow's work folder, that a stage's `split` writes."""

_laying_out = threading.Lock()


def part_job(
    store: Store, job: Job, document: Meta, arguments: Meta, shared: str, work: Path, *, replace: bool, created: str
) -> Meta:
    """Return the description of one part (piece of the work) of a stage as JSON, which `make_part_apart` takes in a
    worker.

    Args:
        store: The store that passes inputs and results.
        job: The job of the whole stage.
        document: The key document of the part: the JSON of all that decides its result.
        arguments: The arguments that identify the part (see `trnflow.tasks.stage.Part`).
        shared: The digest of the artifact of the folder that the stage's `split` wrote for all parts.
        work: The work folder of the flow, the process that sends out the parts; its folder `SHARED` has the same files.
            Its name contains the process and the boot of the machine, so a worker that finds a folder with this name
            sees the flow's own folder.
        replace: Whether to replace a record that the part's key already has.
        created: The time to put in the part's record, UTC.
    """
    root = str(Path(store.root).absolute()) if store.is_local and "://" not in store.root else store.root
    return {
        "store": root,
        "home": str(store.home.absolute()),
        "stage": name_of(job.stage.function),
        "config_type": name_of(type(job.config)),
        "config": portable(job.config),
        "inputs": {name: item.digest for name, item in job.inputs.items() if isinstance(item, Input)},
        "shared": shared,
        "work": None if store.is_local else str(work.absolute()),
        "arguments": arguments,
        "document": document,
        "attempt": job.attempt,
        "launcher": name_of(type(job.launcher)),
        "created": created,
        "replace": replace,
    }


def make_part_apart(job: Meta) -> Meta:
    """Make one part (piece of the work) of a stage and publish the result, so that the store has its files and its
    record. This runs in a worker.

    job: made by `part_job`.

    Returns:
        {"artifact": the digest in the part's record, "made": the digest of the artifact that this worker made, "said":
        the list of the events (progress, metrics, messages) that the part reported}. The digests differ if another
        worker had published a different result before.

    Raises:
        StoreError: This worker sees no store at the address in the job.
        CodeError: This worker's code, or the version of a library, differs from that in the part's key document.
    """
    store = _store(job["store"], job["home"])
    stage, document = stage_of(resolve(job["stage"])), job["document"]
    _check_libraries(stage, document, store)
    said: list[Meta] = []
    name = f"{job['attempt']}-{key_of(document)[:12]}"
    inputs: dict[str, Input | Source] = {name: _laid_out(store, digest) for name, digest in job["inputs"].items()}
    near = Path(job["work"]) if job["work"] and os.path.isdir(job["work"]) else None
    shared = near / SHARED if near else _laid_out(store, job["shared"], cache=False).path
    config = resolve(job["config_type"]).model_validate(job["config"])
    with workplace(store.home, name) as work:
        log = attempt_log(store.home, run_of(job["attempt"]), name)
        unit = Job(stage, config, document, inputs, job["attempt"], log, {}, STOP_SECONDS, resolve(job["launcher"])())
        meta = unit.run(store, work / "out", said.append, Step("part", str(shared), job["arguments"]))
        artifact = store.ingest(work / "out", part_kind(stage), meta, cache=False)
        if near:
            _hand_over(work / "out", handed_over(near, document))
    published = publish_part(store, document, artifact, job["attempt"], job["created"], replace=job["replace"])
    return {"artifact": published, "made": artifact.digest, "said": said}


def handed_over(work: Path, document: Meta) -> Path:
    """Return the folder to which a worker moves the files of a finished part (piece of a stage's work), if it runs on
    the machine of the flow, the process that sent out the part. The flow takes them from there. work: the flow's work
    folder; document: the part's key document, the JSON of everything that decides its result."""
    return work / "handed" / key_of(document)


def publish_part(store: Store, document: Meta, artifact: Artifact, attempt: str, created: str, *, replace: bool) -> str:
    """Write the record of a part (piece of a stage's work) to the store, under the hash of its key document (the JSON
    of everything that decides its result), so that later runs find the part. Return the artifact's digest in the record
    that the key has afterwards.

    The returned digest differs from the artifact's if another run has published a different result first. attempt: the
    id of the attempt that made the part; created: UTC; replace: whether to replace an existing record.
    """
    record = record_of(document, artifact, attempt, created)
    digest: str = publish(store, record, artifact, unusable=lambda _: replace)["artifact"]
    return digest


def part_kind(stage: Stage) -> str:
    """Return the kind of the artifacts of a stage's parts (pieces of its work): that of the stage and `.shard`, such as
    `tokens.shard`."""
    return f"{stage.kind}{SHARD}"


@lru_cache(maxsize=1)
def _store(root: str, home: str) -> Store:
    store = Store(root, Path(home))
    if not store.is_made():
        raise StoreError(
            f"this worker sees no store at {root}", "use one that all workers reach, such as store.root=s3://..."
        )
    return store


def _hand_over(made: Path, to: Path) -> None:
    """Move the folder `made` to `to`. If that fails, the flow downloads the files."""
    with contextlib.suppress(OSError):  # the flow has ended, or another worker has handed over the same part
        to.parent.mkdir(exist_ok=True)
        made.rename(to)


def _laid_out(store: Store, digest: str, *, cache: bool = True) -> Input:
    """Return an artifact with its files on this machine. The files stay until this process ends. cache: whether the machine
    keeps the files of a remote store for longer."""
    with _laying_out:  # workers with threads lay out an artifact once
        return _checked_out(store, digest, cache)


@lru_cache(maxsize=8)
def _checked_out(store: Store, digest: str, cache: bool) -> Input:
    clear(store.home / "work")
    artifact = store.artifact(digest)
    folder = workfolder(store.home, f"input-{digest.removeprefix('sha256:')[:12]}-{uuid4().hex[:8]}")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if cache:
        store.link_files(artifact, folder)
    else:
        store.copy_files(artifact, folder, cache=False)
    return Input(folder, artifact.kind, artifact.meta, digest)


def _check_libraries(stage: Stage, document: Meta, store: Store) -> None:
    """Raise CodeError if a library's version differs from the one in the key. (`Job.run` checks the project's code.)"""
    here: dict[str, Any] = closure(stage.function.__module__, store.memo)[1]
    for name, version in document["env"].items():
        if here.get(name) != version:
            raise CodeError(
                f"this worker has {name} {here.get(name)}, the flow {version}: what it makes would differ",
                "install the same requirements.lock on every worker",
            )
