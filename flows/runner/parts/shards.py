"""Run a stage that works in parts: pieces of its work that can be made one by one, such as 2 MiB of text for
tokenize_text. A part that is kept in the store is called a shard. After a change of the data only the changed parts are
made again.

A part has a key of its own, the hash of the part's key document. This is the stage's key document (the JSON of
everything that decides the stage's result) with the part's params and inputs in place of the stage's. The record of a
part, by which later runs find its artifact, is `records/<stage>.shard/<key>.json` in the store. Each part is published
(put on record) as soon as it is made, so a stage that was killed has to make only the rest. The stage reads copies of
the parts: if garbage collection removes a part in the meantime, this run goes on, and a later run makes the part again.

Parts are not kept in the local cache of a remote store: nothing empties the cache, and the stage's output has the same
data. Workers on this machine move their parts to the work folder of the attempt (this try to run the stage), so these
parts are not downloaded.
"""

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
    """Runs one stage that works in parts (pieces of its work with results of their own): `run` takes each part from the
    store or makes it, and puts the parts together.

    Attributes:
        job: The job of the whole stage.
        journal: The journal of the attempt (this try to run the stage), a JSON document in the store. It lists the
            parts, which protects them from garbage collection.
        work: The folder of the attempt, for parts and output.
        maker: Makes and publishes parts in other processes. None: the stage's own process makes the parts, and they are
            published (put on record in the store for later runs) only if the stage has `keep_parts`.
        threads: The number of threads of the stage's own process that make parts.
        force: Whether to make all parts again, even if they are in the store.
        note: A function that is called with messages for the user.
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
        """Run the stage, its parts included, and return the stage's metadata. The stage's files are then in `work/out`;
        the caller puts them into the store. emit: called with each event (progress, metrics, message) of the stage."""
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
        """Put the files of a part that has a record into the folder `work/parts/NUMBER`, and return the part's
        metadata. None when `record` is None, or the part's artifact is corrupt, of another kind, or removed by garbage
        collection.

        handed: a folder that has the part's files, which is moved to that place; if it is None or missing, the files
        are copied out of the store."""
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
