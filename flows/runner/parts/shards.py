"""Run a stage that works in parts: take each part from the store or make it, so that changed data redoes only the changed
parts.

A part has a key of its own: its key document is that of the stage with other params and inputs. Its record lies at
`records/<stage>.shard/<key>.json`, its artifact with all others. Each part is published as soon as it is made, so a stage
that was killed has to make only the rest. The stage reads copies of the parts: a part that garbage collection removes in
the meantime does no harm to this run, and a later run makes it again.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flows.runner.job import Job
from flows.runner.parts.part_makers import PartMaker
from flows.runner.parts.worker_process import part_job, part_kind, publish_part
from tasks.artifact import Meta
from tasks.errors import BlobLost
from tasks.keys.key_document import key_of
from tasks.launch.job import Step
from tasks.store import Store
from tasks.store.layout import SHARD

Emit = Callable[[Meta], None]


@dataclass
class Shards:
    """Runs one stage that works in parts.

    Attributes:
        journal: The journal of the stage's attempt. It lists the parts, which protects them from garbage collection.
        work: The folder of the attempt, for parts and output.
        maker: Makes and publishes parts in other processes. None: the stage's own process makes them, and they are
            published only if the stage has `keep_parts`.
        threads: Threads of the stage's own process that make parts.
        force: Whether to make all parts anew.
        note: Gets sentences to show to the user.
    """

    store: Store
    job: Job
    journal: Meta
    work: Path
    maker: PartMaker | None
    threads: int
    force: bool
    note: Callable[[str], None]

    def run(self, emit: Emit) -> Meta:
        """Run the stage and return its metadata. Its files are then in `work/out`. emit: gets the events of the stage."""
        if self.maker is None and not self.job.stage.keep_parts:
            return self.job.run(self.store, self.work / "out", emit, Step(threads=self.threads))
        shared = self.work / "shared"
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

    def _lay_out(self, number: int, record: Meta | None) -> Meta | None:
        """Copy a part on record to its folder and return its metadata. None when there is none, or it is corrupt, of another
        kind, or was collected meanwhile."""
        folder = self._folder / str(number)
        if record is None:
            return None
        folder.mkdir(parents=True)
        try:
            artifact = self.store.artifact(record["artifact"])
            if artifact.kind != part_kind(self.job.stage):
                raise BlobLost(f"{artifact.digest[:19]} is of kind {artifact.kind}", "", artifact.digest)
            self.store.copy_out(artifact, folder)
        except (BlobLost, FileNotFoundError):
            shutil.rmtree(folder, ignore_errors=True)
            return None
        self._list(number, artifact.digest)
        return artifact.meta

    def _made_apart(self, maker: PartMaker, missing: list[int], shared: Path, emit: Emit) -> list[tuple[int, Meta]]:
        """Have workers make and publish the missing parts; lay them out as they come."""
        copy = shared.with_name("shared.kept")
        shutil.copytree(shared, copy)
        digest = self.store.ingest(copy, f"{self.job.stage.kind}.shared", {}).digest
        jobs = (self._part_job(number, digest) for number in missing)
        made = []
        for number, done in zip(missing, maker.make(jobs), strict=True):
            for event in done["said"]:
                emit(event)
            if done["artifact"] != done["made"]:
                self._note_difference(number)
            meta = self._lay_out(number, done)
            if meta is None:
                what = f"{self.documents[number]['stage']} {key_of(self.documents[number])[:12]}"
                raise BlobLost(f"{what} was lost when it was needed", "run again", done["artifact"])
            self._write_journal()
            made.append((number, meta))
        return made

    def _part_job(self, number: int, shared: str) -> Meta:
        document, arguments = self.documents[number], self.parts[number]["arguments"]
        replace, created = self._replaces(number), self.journal["started"]
        return part_job(self.store, self.job, document, arguments, shared, replace=replace, created=created)

    def _publishing(self, emit: Emit) -> Emit:
        """`emit`, but the events that report a part publish it."""

        def publish(event: Meta) -> None:
            if "part" in event:
                self._publish(event["part"], event["meta"])
            else:
                emit(event)

        return publish

    def _publish(self, number: int, meta: Meta) -> None:
        document = self.documents[number]
        artifact = self.store.ingest(self._folder / f"{number}.kept", part_kind(self.job.stage), meta)
        self._list(number, artifact.digest)
        self._write_journal()
        attempt, created, replace = self.journal["attempt"], self.journal["started"], self._replaces(number)
        if publish_part(self.store, document, artifact, attempt, created, replace=replace) != artifact.digest:
            self._note_difference(number)

    def _replaces(self, number: int) -> bool:
        """Whether a part that is made replaces a record: it was made anew on purpose, or the recorded one can't be used."""
        return self.force or self.on_record[number] is not None

    def _note_difference(self, number: int) -> None:
        document = self.documents[number]
        self.note(f"{document['stage']} {key_of(document)[:12]} is not deterministic; the record counts")

    def _say_counts(self, made: int, emit: Emit) -> None:
        """How many parts were made, for the user and the attempt."""
        total = len(self.parts)
        if made < total:
            emit({"info": f"{total - made} of {total} shards were made before"})
        if total:
            emit({"figures": {"shards_made": made, "shards_reused": total - made}})

    def _list(self, number: int, artifact: str) -> None:
        document = self.documents[number]
        shard = {"stage": document["stage"], "key": key_of(document), "artifact": artifact}
        self.journal.setdefault("shards", []).append(shard)

    def _write_journal(self) -> None:
        self.store.write_attempt(key_of(self.job.document), self.journal["attempt"], self.journal)


def listed(store: Store, journal: Meta) -> Meta:
    """Return what the stage's record says about its parts: {"shards": [{"stage", "key"}, ...]}, or {} if it has none.

    Parts that garbage collection has moved to the trash since they were used are brought back.
    """
    shards = [{"stage": shard["stage"], "key": shard["key"]} for shard in journal.get("shards", [])]
    with contextlib.suppress(BlobLost):  # then it is made anew when it is wanted
        store.secure(shards)
    return {"shards": shards} if shards else {}
