"""Make one part of a stage in a worker, here or on another machine that reaches the same store. What it makes goes through
the store, or, on the flow's machine, through its work folder; none of it goes through Prefect."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import threading
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

from trnflow.flows.runner.attempts import run_of
from trnflow.flows.runner.parts.carried_code import refuse_foreign, unpacked_code
from trnflow.flows.runner.stage_call import stage_call
from trnflow.flows.runner.stored import publish
from trnflow.flows.runner.work_folders import attempt_log, clear, workplace
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.documents import KeyDocument
from trnflow.tasks.errors import CodeError, StoreError
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.keys.distributions import installed_versions
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.launch.call import Call, resolve
from trnflow.tasks.launch.local import STOP_SECONDS, run_call
from trnflow.tasks.stage import Stage, stage_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import SHARD
from trnflow.tasks.system.home import workfolder

SHARED = "shared"
"""The name of the folder, in the flow's work folder, that a stage's `split` writes."""

_fetching = threading.Lock()


def make_part_apart(document: Meta) -> Meta:
    """Make a part and publish it. document: its `Call` as JSON.

    Returns:
        {"artifact": digest on record, "made": digest that this worker made, "events": the part's}.

    Raises:
        StoreError: This worker sees no store at the call's address.
        CodeError: This worker's code or libraries differ from those in the part's key.
    """
    call = Call.from_json(document)
    store = _store(call.root, call.home)
    stage, key = stage_of(resolve(call.function)), key_of(call.document)
    _check_libraries(stage, call.document, store)
    near = None if store.is_local or not call.phase.shared.path.is_dir() else call.phase.shared.path.parent
    phase = call.phase if near else replace(call.phase, shared=_fetched(store, call.phase.shared.digest, cache=False))
    inputs = {name: _here(store, item) for name, item in call.inputs.items()}
    config = resolve(call.config_type).model_validate(call.config)
    events: list[Meta] = []
    name = f"{call.attempt}-{key[:12]}"
    with workplace(store.home, name) as work:
        here = stage_call(
            store, stage, config, call.document, inputs, work / "out", attempt=call.attempt, environment={}, phase=phase,
            log=attempt_log(store.home, run_of(call.attempt), name), grace_seconds=STOP_SECONDS,
            memory_gib=call.memory_gib,
        )  # fmt: skip
        meta = run_call(here, events.append)
        artifact = store.ingest(work / "out", part_kind(stage), meta, cache=False)
        if near:
            # otherwise the flow downloads the files: it has ended, or another worker has handed over the same part
            with contextlib.suppress(OSError):
                to = handed_over(near, key)
                to.parent.mkdir(exist_ok=True)
                (work / "out").rename(to)
    recorded = publish(store, call.document, artifact, call.attempt, unusable=lambda record: phase.replace)
    return {"artifact": recorded, "made": artifact.digest, "events": events}


def handed_over(work: Path, key: str) -> Path:
    """Return the folder through which a worker on the flow's machine hands over a part. work: of the flow's attempt."""
    return work / "handed" / key


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


def _here(store: Store, item: Input | Source) -> Input | Source:
    """Return an input with its files on this machine, of the user's code those that the flow carried here."""
    if isinstance(item, Input):
        return _fetched(store, item.digest)
    carried = item.location["carried"]
    refuse_foreign(store.artifact(carried["digest"]), carried)
    # copies, since a link would be followed to a blob, which has no name of a module
    return unpacked_code(item, _fetched(store, carried["digest"], cache=False).path, store.home)


def _fetched(store: Store, digest: str, *, cache: bool = True) -> Input:
    """Return an artifact with its files on this machine until this process ends."""
    with _fetching:  # workers with threads fetch an artifact once
        return _fetched_once(store, digest, cache)


@lru_cache(maxsize=8)
def _fetched_once(store: Store, digest: str, cache: bool) -> Input:
    clear(store.home / "work")
    artifact = store.artifact(digest)
    folder = workfolder(store.home, f"input-{digest.removeprefix('sha256:')[:12]}-{uuid4().hex[:8]}")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if cache:
        store.link_files(artifact, folder)
    else:
        store.copy_files(artifact, folder, cache=False)
    return Input(folder, artifact.kind, artifact.meta, digest)


def _check_libraries(stage: Stage, document: KeyDocument, store: Store) -> None:
    """Raise CodeError if a library's version differs from the one in the key. (`stage_call` checks the project's code.)"""
    known = closure(stage.function.__module__, store.memo)[1]
    here = installed_versions({*document["env"]} - known.keys(), store.memo) | known
    for name, version in document["env"].items():
        if here.get(name) != version:
            raise CodeError(
                f"this worker has {name} {here.get(name)}, the flow {version}: what it makes would differ",
                "install the same requirements.lock on every worker",
            )
