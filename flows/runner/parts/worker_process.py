"""Make one part of a stage in a worker, here or on another machine that reaches the same store. What it makes goes through
the store, or, on the flow's machine, through its work folder; none of it goes through Prefect."""

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
    """Return the description of a part as JSON, which `make_part_apart` takes.

    Args:
        job: Of the whole stage.
        document: The part's key document.
        arguments: Which part (see `trnflow.tasks.stage.Part`).
        shared: Digest of what the stage's `split` wrote.
        work: The flow's work folder; a worker that finds it is on the flow's machine.
        replace: Replace a record that the part's key has.
        created: UTC.
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
    """Make a part and publish it.

    Returns:
        {"artifact": digest on record, "made": digest that this worker made, "said": the part's events}.

    Raises:
        StoreError: This worker sees no store at the job's address.
        CodeError: This worker's code or libraries differ from those in the part's key.
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
    """Return the folder through which a worker on the flow's machine hands over a part."""
    return work / "handed" / key_of(document)


def publish_part(store: Store, document: Meta, artifact: Artifact, attempt: str, created: str, *, replace: bool) -> str:
    """Publish a part and return the digest that is on record then. created: UTC."""
    record = record_of(document, artifact, attempt, created)
    digest: str = publish(store, record, artifact, unusable=lambda _: replace)["artifact"]
    return digest


def part_kind(stage: Stage) -> str:
    """Return the kind of a stage's parts, such as `tokens.shard`."""
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
    """Return an artifact with its files on this machine until this process ends."""
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
