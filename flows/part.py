"""A part of a stage's work, done in another process: on this machine, or on any that reaches the store.

The spec is JSON: names of functions, the config, digests of inputs. The worker opens the store, lays the inputs out (pulled
once a process), sees that its code and libraries are those of the key, does the part and publishes it as a shard; the flow
takes it from the store. So nothing large travels, and any worker can take any part.
Fails with StoreError where the worker sees no store, CodeError where its code or a library's version is another.
"""

from __future__ import annotations

import atexit
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

from flows.workplace import clear, data_folders, workfolder, workplace
from tasks.artifact import Artifact, Input, Meta
from tasks.errors import CodeError, StoreError
from tasks.fingerprint import closure, key_of
from tasks.launch.job import resolve
from tasks.proof import note_loaded, permit_for
from tasks.stage import Stage, make_part, of
from tasks.store import Store
from tasks.witness import watch


def make_apart(spec: Meta) -> Meta:
    """{"artifact": digest, "said": events}. spec: as `flows.shards` writes it."""
    store = _store(spec["store"], spec["home"])
    stage, document = of(resolve(spec["stage"])), spec["document"]
    _check_libraries(stage, document, store)
    config = resolve(spec["config_type"]).model_validate(spec["config"])
    inputs = {name: _laid_out(store, digest) for name, digest in spec["inputs"].items()}
    said: list[Meta] = []
    with workplace(store.home, f"{spec['attempt']}-{key_of(document)[:12]}") as work:
        permit = permit_for(stage, document["code"], inputs.values(), data_folders(store), store.memo)
        with watch(permit):
            meta = make_part(resolve(spec["make"]), config, inputs, spec["arguments"], work / "part", said.append)
        artifact = store.ingest(work / "part", spec["kind"], meta)
    store.secure([], artifact)
    record = shard_record(document, artifact, spec["attempt"], spec["started"])
    published = store.publish(record, replace=spec["replace"])
    return {"artifact": published["artifact"], "made": artifact.digest, "said": said}


def shard_record(document: Meta, artifact: Artifact, attempt: str, started: str) -> Meta:
    """What makes a shard visible."""
    return {
        "schema": 1,
        "stage": document["stage"],
        "key": key_of(document),
        "document": document,
        "artifact": artifact.digest,
        "attempt": attempt,
        "created": started,
    }


@lru_cache(maxsize=1)
def _store(root: str, home: str) -> Store:
    store = Store(root, Path(home))
    if not store.is_made():
        raise StoreError(
            f"this worker sees no store at {root}", "use one that all workers reach, such as store.root=s3://..."
        )
    note_loaded(store.memo)
    return store


@lru_cache(maxsize=8)
def _laid_out(store: Store, digest: str) -> Input:
    """An artifact's files on this machine, for as long as this process lives."""
    clear(store.home / "work")
    artifact = store.artifact(digest)
    folder = workfolder(store.home, f"input-{digest.removeprefix('sha256:')[:12]}")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Input(store.checkout(artifact, folder), artifact.kind, artifact.meta, digest)


def _check_libraries(stage: Stage, document: Meta, store: Store) -> None:
    """The code is checked where it is loaded (`permit_for`); here, what it stands on."""
    here: dict[str, Any] = closure(stage.function.__module__, store.memo)[1]
    for name, version in document["env"].items():
        if here.get(name) != version:
            raise CodeError(
                f"this worker has {name} {here.get(name)}, the flow {version}: what it makes would differ",
                "install the same requirements.lock on every worker",
            )
