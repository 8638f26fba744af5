"""Shards of a stage: parts of its work that have keys and records of their own, so that changed data redoes only what changed.

A shard's key document is its stage's, with params and inputs of its own; its record lies at `records/<stage>.shard/<key>.json`
and its artifact beside all others. What the stage reads is a copy, so a shard that is collected, corrupt or changed beside it
is at worst made again. A shard is published as soon as it is made: a killed stage goes on from there.

Those that must be made are handed to workers (`flows.workers`) some ahead of the one that the stage reads, in order.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

from flows.part import shard_record
from flows.workers import Job, Pending, Workers
from tasks.artifact import Artifact, Input, Meta
from tasks.config import StageConfig
from tasks.errors import BlobLost
from tasks.fingerprint import key_of
from tasks.stage import Part, Stage
from tasks.store import Store
from tasks.store.names import SHARD
from tasks.witness import unwatched


@dataclass
class Item:
    """A part on its way. record: that of an earlier run; pending: who makes it now."""

    part: Part
    document: Meta
    folder: Path
    record: Meta | None
    pending: Pending | None = None


@dataclass
class Shards:
    """Finds or makes the shards of one execution of a stage.

    stage, document: the stage and its key document; journal: its attempt, which names the shards, so that they are not
    collected while the stage runs; folder: to work in; force: make them all anew; note: hears what went wrong; emit: what
    the parts say."""

    store: Store
    stage: Stage
    document: Meta
    journal: Meta
    folder: Path
    workers: Workers
    force: bool
    note: Callable[[str], None]
    emit: Callable[[Meta], None]
    made: int = 0
    reused: int = 0
    _numbers: Iterator[int] = field(default_factory=count)

    def share(self, folder: Path, kind: str) -> Input:
        """See `tasks.stage.Workdir.share`. Workers in other processes take it from the store."""
        if not self.workers.apart:
            return Input(folder, kind, {}, "")
        with unwatched():
            artifact = self._ingest(folder, kind, {})
            return Input(folder, kind, {}, artifact.digest)

    def map(
        self,
        make: Callable[..., Meta],
        config: StageConfig,
        inputs: Mapping[str, Input],
        parts: Iterable[Part],
        *,
        keep: bool,
    ) -> Iterator[tuple[Path, Meta]]:
        """See `tasks.stage.Workdir.parts`. Called in the stage's thread: only `make` is watched as the stage's doing."""
        keep = keep or self.workers.apart  # they give through the store
        waiting: deque[Item] = deque()
        todo = iter(parts)
        with self.workers.at(self.stage.name) as crew:

            def start(item: Item) -> None:
                item.pending = crew.start(self._job(item, make, config, inputs))

            def fill(most: int) -> None:
                for part in islice(todo, most):
                    item = self._looked_up(part, keep)
                    if item.record is None:
                        start(item)
                    waiting.append(item)

            fill(crew.ahead)
            while waiting:
                item = waiting.popleft()
                meta = self._found(item)
                if meta is None:
                    if item.pending is None:  # it was on record, and could not be read
                        start(item)
                    meta = self._finished(item, keep)
                yield item.folder, meta
                shutil.rmtree(item.folder, ignore_errors=True)
                fill(1)

    def tell(self) -> None:
        """How many were made, for the user and the attempt."""
        total = self.made + self.reused
        if self.reused:
            self.emit({"info": f"{self.reused} of {total} shards were made before"})
        if total:
            self.emit({"figures": {"shards_made": self.made, "shards_reused": self.reused}})

    # One part

    def _looked_up(self, part: Part, keep: bool) -> Item:
        with unwatched():
            document = {**self.document, **part.identity, "stage": f"{self.stage.name}{SHARD}"}
            look = keep and not self.force
            record = self.store.record(document["stage"], key_of(document)) if look else None
            return Item(part, document, self.folder / str(next(self._numbers)), record)

    def _found(self, item: Item) -> Meta | None:
        """The metadata of a shard on record, whose files are then in its folder; None when it must be made."""
        if item.record is None:
            return None
        with unwatched():
            meta = self._lay_out(item.record["artifact"], item)
            self.reused += meta is not None
            return meta

    def _job(self, item: Item, make: Callable[..., Meta], config: StageConfig, inputs: Mapping[str, Input]) -> Job:
        return Job(
            make=make,
            config=config,
            inputs=inputs,
            arguments=item.part.arguments,
            folder=item.folder,
            stage=self.stage,
            kind=f"{self.stage.kind}{SHARD}",
            document=item.document,
            journal=self.journal,
            replace=self.force or item.record is not None,
        )

    def _finished(self, item: Item, keep: bool) -> Meta:
        """Wait for a part, hear what it said, and have it on record if it is to be kept."""
        assert item.pending is not None
        done = item.pending()
        self.made += keep
        for event in done.said:
            self.emit(event)
        with unwatched() as witness:
            if witness is not None:
                witness.refuse_offenders()
            if done.artifact is None:
                return self._publish(item, done.meta) if keep else done.meta
            if done.artifact != done.made:
                self._tell_difference(item)
            meta = self._lay_out(done.artifact, item)
            if meta is None:
                raise self._lost(item, done.artifact)
            self._write_journal()
            return meta

    def _lay_out(self, digest: str, item: Item) -> Meta | None:
        """Copy a shard into its folder, which then is the stage's own. None when it is corrupt, or was collected meanwhile."""
        shutil.rmtree(item.folder, ignore_errors=True)
        item.folder.mkdir(parents=True)
        try:
            artifact = self.store.artifact(digest)
            self.store.copy_out(artifact, item.folder)
        except (BlobLost, FileNotFoundError):
            shutil.rmtree(item.folder, ignore_errors=True)
            return None
        self._list(item, artifact)
        return artifact.meta

    def _publish(self, item: Item, meta: Meta) -> Meta:
        """The metadata that counts: that of another run which made the same shard meanwhile, if that is on record."""
        artifact = self._ingest(item.folder, f"{self.stage.kind}{SHARD}", meta)
        self._list(item, artifact)
        self._write_journal()
        self.store.secure([], artifact)
        record = shard_record(item.document, artifact, self.journal["attempt"], self.journal["started"])
        published = self.store.publish(record, replace=self.force or item.record is not None)
        if published["artifact"] == artifact.digest:
            return meta
        self._tell_difference(item)
        adopted = self._lay_out(published["artifact"], item)
        if adopted is None:
            raise self._lost(item, published["artifact"])
        return adopted

    def _tell_difference(self, item: Item) -> None:
        self.note(f"{item.document['stage']} {key_of(item.document)[:12]} is not deterministic; the record counts")

    def _lost(self, item: Item, digest: Any) -> BlobLost:
        what = f"{item.document['stage']} {key_of(item.document)[:12]}"
        return BlobLost(f"{what} was lost when it was needed", "run again", digest)

    def _ingest(self, folder: Path, kind: str, meta: Meta) -> Artifact:
        """The store moves what it takes, and the stage has yet to read it."""
        copy = folder.with_name(f"{folder.name}.ingest")
        shutil.copytree(folder, copy)
        artifact = self.store.ingest(copy, kind, meta)
        shutil.rmtree(copy)
        return artifact

    def _list(self, item: Item, artifact: Artifact) -> None:
        shard = {"stage": item.document["stage"], "key": key_of(item.document), "artifact": artifact.digest}
        self.journal.setdefault("shards", []).append(shard)

    def _write_journal(self) -> None:
        self.store.write_attempt(key_of(self.document), self.journal["attempt"], self.journal)


def listed(store: Store, journal: Meta) -> Meta:
    """What a record says of the shards that its attempt went through, brought back where they were collected meanwhile."""
    shards = [{"stage": shard["stage"], "key": shard["key"]} for shard in journal.get("shards", [])]
    with contextlib.suppress(BlobLost):  # then it is made anew when it is wanted
        store.secure(shards)
    return {"shards": shards} if shards else {}
