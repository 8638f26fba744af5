"""Shards of a stage: parts of its work that have keys and records of their own, so that changed data redoes only what changed.

A shard's key document is its stage's, with params and inputs of its own; its record lies at `records/<stage>.shard/<key>.json`
and its artifact beside all others. What the stage reads is a copy, so a shard that is collected, corrupt or changed beside it
is at worst made again. A shard is published as soon as it is made: a killed stage goes on from there.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from tasks.artifact import Artifact, Meta
from tasks.errors import BlobLost
from tasks.fingerprint import key_of
from tasks.stage import Stage
from tasks.store import Store
from tasks.store.names import SHARD
from tasks.witness import unwatched

Make = Callable[[Path], Meta]


class Shards:
    """Finds or makes the shards of one execution of a stage.

    stage, document: the stage and its key document; journal: its attempt, which names the shards, so that they are not
    collected while the stage runs; folder: to work in; force: make them all anew; note: hears what went wrong."""

    def __init__(
        self,
        store: Store,
        stage: Stage,
        document: Meta,
        journal: Meta,
        folder: Path,
        *,
        force: bool,
        note: Callable[[str], None],
    ) -> None:
        self._store = store
        self._stage = f"{stage.name}{SHARD}"
        self._kind = f"{stage.kind}{SHARD}"
        self._key = key_of(document)
        self._document = document
        self._journal = journal
        self._folder = folder
        self._force = force
        self._note = note
        self._made = 0
        self._reused = 0

    def __call__(self, identity: Meta, make: Make) -> tuple[Path, Meta]:
        """See `tasks.stage.Workdir.shard`. Called in the stage's thread: only `make` is watched as the stage's doing."""
        with unwatched():
            document = {**self._document, **identity, "stage": self._stage}
            key = key_of(document)
            record = None if self._force else self._store.record(self._stage, key)
            meta = self._lay_out(record) if record else None
            if meta is not None:
                self._reused += 1
                return self._folder, meta
            self._clear()
        meta = make(self._folder)
        with unwatched() as witness:
            if witness is not None:
                witness.refuse_offenders()
            self._made += 1
            return self._folder, self._publish(document, meta, replace=self._force or record is not None)

    def tell(self, emit: Callable[[Meta], None]) -> None:
        """How many were made, for the user and the attempt."""
        total = self._made + self._reused
        if self._reused:
            emit({"info": f"{self._reused} of {total} shards were made before"})
        if total:
            emit({"figures": {"shards_made": self._made, "shards_reused": self._reused}})

    def _lay_out(self, record: Meta) -> Meta | None:
        """The metadata of a shard on record, whose files are then in the folder; None when it must be made."""
        self._clear()
        try:
            artifact = self._store.artifact(record["artifact"])
            self._store.copy_out(artifact, self._folder)
        except (BlobLost, FileNotFoundError):  # corrupt, or collected under our hands
            return None
        self._list(record["key"], artifact)
        return artifact.meta

    def _publish(self, document: Meta, meta: Meta, *, replace: bool) -> Meta:
        """The metadata that counts: that of another run which made the same shard meanwhile, if that is on record."""
        artifact = self._ingest(meta)
        key = key_of(document)
        self._list(key, artifact)
        self._store.write_attempt(self._key, self._journal["attempt"], self._journal)
        self._store.secure([], artifact)
        record = {
            "schema": 1,
            "stage": self._stage,
            "key": key,
            "document": document,
            "artifact": artifact.digest,
            "attempt": self._journal["attempt"],
            "created": self._journal["started"],
        }
        published = self._store.publish(record, replace=replace)
        if published["artifact"] == artifact.digest:
            return meta
        self._note(f"{self._stage} {key[:12]} is not deterministic; the record counts")
        adopted = self._lay_out(published)
        if adopted is None:
            raise BlobLost(f"{self._stage} {key[:12]} was lost when it was needed", "run again", published["artifact"])
        return adopted

    def _ingest(self, meta: Meta) -> Artifact:
        """The store moves what it takes, and the stage has yet to read it."""
        copy = self._folder.with_name("ingest")
        shutil.copytree(self._folder, copy)
        artifact = self._store.ingest(copy, self._kind, meta)
        shutil.rmtree(copy)
        return artifact

    def _list(self, key: str, artifact: Artifact) -> None:
        self._journal.setdefault("shards", []).append({"stage": self._stage, "key": key, "artifact": artifact.digest})

    def _clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)


def listed(store: Store, journal: Meta) -> Meta:
    """What a record says of the shards that its attempt went through, brought back where they were collected meanwhile."""
    shards = [{"stage": shard["stage"], "key": shard["key"]} for shard in journal.get("shards", [])]
    with contextlib.suppress(BlobLost):  # then it is made anew when it is wanted
        store.secure(shards)
    return {"shards": shards} if shards else {}
