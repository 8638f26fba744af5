"""Run a stage that works in parts. After a change of the data only the changed parts are made again.

A part has a key and a record of its own, below `records/<stage>.shard/`, and is published as soon as it is made: a stage
that was killed makes only the rest."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from trnflow.flows.runner.context import PartMaker
from trnflow.flows.runner.parts.carried_code import packed_code
from trnflow.flows.runner.parts.worker_process import SHARED, handed_over, part_kind
from trnflow.flows.runner.stored import publish
from trnflow.tasks.artifact import CODE, Input, Meta, Source
from trnflow.tasks.documents import Journal, KeyDocument, RecordName, Shard
from trnflow.tasks.errors import BlobLost
from trnflow.tasks.events import Emit
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.launch.call import Call, Phase
from trnflow.tasks.launch.local import run_call
from trnflow.tasks.stage import Stage
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import SHARD

JOURNAL_SECONDS = 5.0
"""Seconds between two writes of the journal while parts are published."""


@dataclass
class Shards:
    """One stage that works in parts.

    Attributes:
        call: Of the whole stage.
        journal: Lists the parts, which protects them from garbage collection.
        work: The attempt's folder.
        maker: Makes parts in other processes; None: the stage's own process makes them.
        force: Make all parts again.
        note: Called with messages for the user.
    """

    store: Store
    stage: Stage
    call: Call
    journal: Journal
    work: Path
    maker: PartMaker | None
    force: bool
    note: Callable[[str], None]
    _journal_written: float = float("-inf")

    def run(self, emit: Emit) -> Meta:
        """Run the stage, parts included, and return its metadata. emit: called with each event."""
        self.shared: Input[Meta] = Input(self.work / SHARED, "shared", {}, "")
        self.parts = run_call(replace(self.call, out=self.shared.path, phase=Phase("split")), emit)["parts"]
        name = f"{self.stage.name}{SHARD}"
        self.documents = [
            cast(KeyDocument, {**self.call.document, **part["identity"], "stage": name}) for part in self.parts
        ]
        self.keys = [key_of(document) for document in self.documents]
        self.records = [None if self.force else self.store.record(name, key) for key in self.keys]
        metas = [self._fetch(number, record and record["artifact"]) for number, record in enumerate(self.records)]
        missing = [number for number, meta in enumerate(metas) if meta is None]
        if self.maker is not None:
            for number, meta in self._made_apart(self.maker, missing, emit):
                metas[number] = meta

        def on_event(event: Meta) -> None:
            if "part" in event:
                event = {"part": event["part"], "artifact": self._publish(event["part"], event["meta"])}
            emit(event)

        todo = list(zip([part["arguments"] for part in self.parts], metas, strict=True))
        keep, threads = self.maker is None, self.call.phase.threads
        phase = Phase("gather", self.shared, todo=todo, folder=str(self._folder), keep=keep, threads=threads)
        meta = run_call(replace(self.call, phase=phase), on_event)
        made, total = len(missing), len(self.parts)
        if made < total:
            emit({"info": f"{total - made} of {total} shards were made before"})
        if total:
            emit({"figures": {"shards_made": made, "shards_reused": total - made}})
        return meta

    @property
    def _folder(self) -> Path:
        return self.work / "parts"

    def _fetch(self, number: int, artifact: str | None, handed: Path | None = None) -> Meta | None:
        """Put a part's files into `work/parts/NUMBER` and return its metadata; None if it has to be made."""
        folder = self._folder / str(number)
        if artifact is None:
            return None
        self._folder.mkdir(exist_ok=True)
        try:
            part = self.store.artifact(artifact)
            if part.kind != part_kind(self.stage):
                raise BlobLost(f"{artifact[:19]} is of kind {part.kind}", "", artifact)
            if handed is not None and handed.is_dir():
                handed.rename(folder)
            else:
                folder.mkdir()
                # not kept in the cache: nothing empties it, and the output has the same data
                self.store.copy_files(part, folder, cache=False)
        except (BlobLost, FileNotFoundError):
            shutil.rmtree(folder, ignore_errors=True)
            return None
        self._list(number, artifact)
        return part.meta

    def _made_apart(self, maker: PartMaker, missing: list[int], emit: Emit) -> Iterator[tuple[int, Meta]]:
        """Let workers make and publish the missing parts; yield (number, metadata) of each whose files are here."""
        copy = self.work / f"{SHARED}.kept"
        shutil.copytree(self.shared.path, copy)
        digest = self.store.ingest(copy, f"{self.stage.kind}.shared", {}, cache=False).digest
        inputs = self._carried_inputs()
        calls = (self._part_call(number, replace(self.shared, digest=digest), inputs) for number in missing)
        for number, result in zip(missing, maker.make(calls), strict=True):
            for event in result["events"]:
                emit(event)
            is_ours = self._is_on_record(number, made=result["made"], recorded=result["artifact"])
            meta = self._fetch(
                number, result["artifact"], handed_over(self.work, self.keys[number]) if is_ours else None
            )
            if meta is None:
                what = f"{self.documents[number]['stage']} {self.keys[number][:12]}"
                raise BlobLost(f"{what} was lost when it was needed", "run again", result["artifact"])
            self._write_journal_now_and_then()
            emit({"part": number, "artifact": result["artifact"]})
            yield number, meta

    def _carried_inputs(self) -> dict[str, Input | Source]:
        """Return what a worker elsewhere reads: artifacts, and the user's code, put into the store."""
        given = self.call.inputs.items()
        own = {name: item for name, item in given if isinstance(item, Source) and item.kind == CODE}
        carried = {name: packed_code(item, self.store, self.work / f"carried.{name}") for name, item in own.items()}
        return {name: item for name, item in given if isinstance(item, Input)} | carried

    def _part_call(self, number: int, shared: Input[Meta], inputs: dict[str, Input | Source]) -> Call:
        phase = Phase("part", shared, self.parts[number]["arguments"], replace=self._replaces(number))
        # the worker finds out itself what may be read on its machine
        return replace(self.call, document=self.documents[number], inputs=inputs, phase=phase, permit=None, secret=())

    def _publish(self, number: int, meta: Meta) -> str:
        """Publish a part that the stage's process has made, and return the digest on record."""
        artifact = self.store.ingest(self._folder / f"{number}.kept", part_kind(self.stage), meta, cache=False)
        self._list(number, artifact.digest)
        self._write_journal_now_and_then()
        replaces, attempt = self._replaces(number), self.journal["attempt"]
        recorded = publish(self.store, self.documents[number], artifact, attempt, unusable=lambda record: replaces)
        self._is_on_record(number, made=artifact.digest, recorded=recorded)
        return recorded

    def _replaces(self, number: int) -> bool:
        """Return whether to replace the record of a part: the user forced it, or the recorded part can't be used."""
        return self.force or self.records[number] is not None

    def _is_on_record(self, number: int, *, made: str, recorded: str) -> bool:
        if made != recorded:
            document = self.documents[number]
            self.note(f"{document['stage']} {self.keys[number][:12]} is not deterministic; the record counts")
        return made == recorded

    def _list(self, number: int, artifact: str) -> None:
        shard = Shard(stage=self.documents[number]["stage"], key=self.keys[number], artifact=artifact)
        self.journal.setdefault("shards", []).append(shard)

    def _write_journal_now_and_then(self) -> None:
        # a write costs a sync or a request, and what is younger than gc's grace period is kept without it; the last
        # journal is written with the stage's outcome
        if time.monotonic() - self._journal_written >= JOURNAL_SECONDS:
            self.store.write_attempt(key_of(self.call.document), self.journal["attempt"], self.journal)
            self._journal_written = time.monotonic()


def shard_entries(store: Store, journal: Journal) -> list[RecordName]:
    """Return the parts that an attempt's journal lists. Parts in the trash are moved back."""
    shards = [RecordName(stage=shard["stage"], key=shard["key"]) for shard in journal.get("shards", [])]
    with contextlib.suppress(BlobLost):  # a part that can't be moved back is made again by the next run that needs it
        store.restore(shards)
    return shards
