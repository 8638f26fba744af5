"""Run a stage that works in parts. After a change of the data only the changed parts are made again.

A part has a key and a record of its own, below `records/<stage>.shard/`, and is published as soon as it is made: a stage
that was killed makes only the rest."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trnflow.flows.runner.job import Job
from trnflow.flows.runner.parts.part_makers import PartMaker
from trnflow.flows.runner.parts.worker_process import SHARED, handed_over, part_job, part_kind, publish_part
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import BlobLost
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.launch.job import Step
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import SHARD

Emit = Callable[[Meta], None]

JOURNAL_SECONDS = 5.0
"""Seconds between two writes of the journal while parts are published."""


@dataclass
class Shards:
    """One stage that works in parts.

    Attributes:
        job: Of the whole stage.
        journal: Lists the parts, which protects them from garbage collection.
        work: The attempt's folder.
        maker: Makes parts in other processes; None: the stage's own process makes them, and publishes them if the stage has
            `keep_parts`.
        threads: Of that process.
        force: Make all parts again.
        note: Called with messages for the user.
    """

    store: Store
    job: Job
    journal: Meta
    work: Path
    maker: PartMaker | None
    threads: int
    force: bool
    note: Callable[[str], None]
    _journal_written: float = float("-inf")

    def run(self, emit: Emit) -> Meta:
        """Run the stage into `work/out`, parts included, and return its metadata. emit: called with each event."""
        if self.maker is None and not self.job.stage.keep_parts:
            return self.job.run(self.store, self.work / "out", emit, Step(threads=self.threads))
        shared = self.work / SHARED
        self.parts = self.job.run(self.store, shared, emit, Step("split"))["parts"]
        self.documents = [self._document(part) for part in self.parts]
        self.on_record = [None if self.force else self._record(document) for document in self.documents]
        metas = [self._lay_out(number, record) for number, record in enumerate(self.on_record)]
        missing = [number for number, meta in enumerate(metas) if meta is None]
        if self.maker is not None:
            for number, meta in self._made_apart(self.maker, missing, shared, emit):
                metas[number] = meta
        todo = tuple(zip([part["arguments"] for part in self.parts], metas, strict=True))
        step = Step("gather", str(shared), {}, todo, str(self._folder), self.maker is None, self.threads)
        meta = self.job.run(self.store, self.work / "out", self._publishing(emit), step)
        self._say_counts(len(missing), emit)
        return meta

    @property
    def _folder(self) -> Path:
        return self.work / "parts"

    def _document(self, part: Meta) -> Meta:
        return {**self.job.document, **part["identity"], "stage": f"{self.job.stage.name}{SHARD}"}

    def _record(self, document: Meta) -> Meta | None:
        return self.store.record(document["stage"], key_of(document))

    def _lay_out(self, number: int, record: Meta | None, handed: Path | None = None) -> Meta | None:
        """Put a part's files into `work/parts/NUMBER` and return its metadata; None if it has to be made."""
        folder = self._folder / str(number)
        if record is None:
            return None
        self._folder.mkdir(exist_ok=True)
        try:
            artifact = self.store.artifact(record["artifact"])
            if artifact.kind != part_kind(self.job.stage):
                raise BlobLost(f"{artifact.digest[:19]} is of kind {artifact.kind}", "", artifact.digest)
            if handed is not None and handed.is_dir():
                handed.rename(folder)
            else:
                folder.mkdir()
                # not kept in the cache: nothing empties it, and the output has the same data
                self.store.copy_files(artifact, folder, cache=False)
        except (BlobLost, FileNotFoundError):
            shutil.rmtree(folder, ignore_errors=True)
            return None
        self._list(number, artifact.digest)
        return artifact.meta

    def _made_apart(self, maker: PartMaker, missing: list[int], shared: Path, emit: Emit) -> list[tuple[int, Meta]]:
        """Let workers make and publish the missing parts, copy each part to its folder when it is ready, and return
        [(number, metadata)]."""
        copy = shared.with_name(f"{SHARED}.kept")
        shutil.copytree(shared, copy)
        digest = self.store.ingest(copy, f"{self.job.stage.kind}.shared", {}, cache=False).digest
        jobs = (self._part_job(number, digest) for number in missing)
        made = []
        for number, done in zip(missing, maker.make(jobs), strict=True):
            for event in done["said"]:
                emit(event)
            handed: Path | None = handed_over(self.work, self.documents[number])
            if done["artifact"] != done["made"]:
                self._note_difference(number)
                handed = None
            meta = self._lay_out(number, done, handed)
            if meta is None:
                what = f"{self.documents[number]['stage']} {key_of(self.documents[number])[:12]}"
                raise BlobLost(f"{what} was lost when it was needed", "run again", done["artifact"])
            self._write_journal_now_and_then()
            made.append((number, meta))
            emit({"part": number, "artifact": done["artifact"]})
        return made

    def _part_job(self, number: int, shared: str) -> Meta:
        document, arguments = self.documents[number], self.parts[number]["arguments"]
        replace, created = self._replaces(number), self.journal["started"]
        return part_job(self.store, self.job, document, arguments, shared, self.work, replace=replace, created=created)

    def _publishing(self, emit: Emit) -> Emit:
        """Return a function that publishes the part for each event that reports a finished part, and passes all other
        events to `emit`."""

        def publish(event: Meta) -> None:
            if "part" in event:
                artifact = self._publish(event["part"], event["meta"])
                emit({"part": event["part"], "artifact": artifact})
            else:
                emit(event)

        return publish

    def _publish(self, number: int, meta: Meta) -> str:
        document = self.documents[number]
        made = self._folder / f"{number}.kept"
        artifact = self.store.ingest(made, part_kind(self.job.stage), meta, cache=False)
        self._list(number, artifact.digest)
        self._write_journal_now_and_then()
        attempt, created, replace = self.journal["attempt"], self.journal["started"], self._replaces(number)
        published = publish_part(self.store, document, artifact, attempt, created, replace=replace)
        if published != artifact.digest:
            self._note_difference(number)
        return published

    def _replaces(self, number: int) -> bool:
        """Return whether to replace the record of a part: the user forced the part to be made again, or the recorded
        part can't be used."""
        return self.force or self.on_record[number] is not None

    def _note_difference(self, number: int) -> None:
        document = self.documents[number]
        self.note(f"{document['stage']} {key_of(document)[:12]} is not deterministic; the record counts")

    def _say_counts(self, made: int, emit: Emit) -> None:
        """Report how many parts were made and how many were reused, as events."""
        total = len(self.parts)
        if made < total:
            emit({"info": f"{total - made} of {total} shards were made before"})
        if total:
            emit({"figures": {"shards_made": made, "shards_reused": total - made}})

    def _list(self, number: int, artifact: str) -> None:
        document = self.documents[number]
        shard = {"stage": document["stage"], "key": key_of(document), "artifact": artifact}
        self.journal.setdefault("shards", []).append(shard)

    def _write_journal_now_and_then(self) -> None:
        """Write the journal unless it was written in the last JOURNAL_SECONDS: a write costs a sync or a request, and what
        is younger than gc's grace period is kept without it. The last journal is written with the stage's outcome."""
        if time.monotonic() - self._journal_written >= JOURNAL_SECONDS:
            self._write_journal()
            self._journal_written = time.monotonic()

    def _write_journal(self) -> None:
        self.store.write_attempt(key_of(self.job.document), self.journal["attempt"], self.journal)


def shard_entries(store: Store, journal: Meta) -> Meta:
    """Return the field of a stage's record that names the parts (results of pieces of the stage's work, kept in the
    store) from which the artifact was made: {"shards": [{"stage", "key"}, ...]}, or {} if the journal lists no parts.
    Parts that garbage collection has moved to the trash in the meantime are moved back.

    journal: the store's document about the attempt (try to run the stage) that made the artifact.
    """
    shards = [{"stage": shard["stage"], "key": shard["key"]} for shard in journal.get("shards", [])]
    with contextlib.suppress(BlobLost):  # a part that can't be moved back is made again by the next run that needs it
        store.restore(shards)
    return {"shards": shards} if shards else {}
