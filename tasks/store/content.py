"""`Store`: the content store with all operations that a run needs, on artifacts (lists of files) and on three kinds of
JSON documents: a record names the artifact that a stage made for a key, an attempt is the journal of one try to make
that artifact, and a run lists the stages of one run of a recipe.

A stage key is the hash of everything that decides a stage's result: code, settings, inputs, library versions,
accelerator. A result is written in this order: blobs (the artifact's files, named by their digests), manifest (the list
of these files), sync, attempt, record. The record is written last, so a crash never leaves a record of a result that is
not on disk. Finding the result of a key costs one read of a record and one of a manifest.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from functools import partial

from trnflow.tasks.artifact import Artifact, Json, Meta
from trnflow.tasks.errors import BlobLost, ConfigError, StoreError
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.keys.hash_cache import in_threads
from trnflow.tasks.sources.remote_errors import credentials_fix
from trnflow.tasks.store.artifacts import Artifacts
from trnflow.tasks.store.garbage.trash import secure
from trnflow.tasks.store.layout import checked_record, document_name, is_unfinished, read_object, record_name
from trnflow.tasks.store.lease import Waiter, sweep_leases
from trnflow.tasks.store.partial import PartialState
from trnflow.tasks.system.private_files import make_home

READERS = 16
"""How many records of a remote store are read at once."""

FORMAT = {"format": 1, "hash": "sha256"}
FORMAT_PAUSES = (0.5, 1.0, 2.0)
"""Seconds between two attempts to read FORMAT.json from an object store, beside the retries of its library."""


class Store(Artifacts):
    """A content store: files that are named by the digest of their bytes, and three kinds of JSON documents about them.

    A *record* names the artifact that a stage made for a key; an *attempt* is the journal of one try to make that
    artifact; a *run* lists the stages of one run of a recipe. Store(root, home) opens the store at `root` (a folder or
    an fsspec URL), which need not exist yet: `prepare` creates it. home: the folder of local state, TRNFLOW_HOME or
    `.trnflow`."""

    def prepare(self) -> None:
        """Create the store at its root, by writing FORMAT.json, if there is no store yet. Create the home (the folder
        of local state), too.

        Raises:
            ConfigError: FORMAT.json is damaged, or the store is of another format than this version of trnflow uses.
            StoreError: the bucket is missing, or the filesystem can't create files exclusively, so that two runs could
                overwrite each other's results.
        """
        make_home(self.home)
        if self.is_made():
            return
        data = canonical(FORMAT).encode()
        try:
            exclusive = not (self.backend.create("FORMAT.json", data) and self.backend.create("FORMAT.json", data))
        except FileNotFoundError as error:
            fix = "create the bucket, or name another: --store, TRNFLOW_STORE, store.root"
            raise StoreError(f"the store {self.root} can't be created: {error}", fix) from error
        if not exclusive:
            raise StoreError(
                f"the store {self.root} does not create files exclusively: two runs could overwrite each other's results",
                "use a local folder, or an object store with conditional puts (S3, GCS, R2, moto)",
            )
        self.check()

    def check(self) -> None:
        """Check that there is a store at the root, of the format that this version of trnflow uses; raise ConfigError
        otherwise. Write nothing."""
        if not self.is_made():
            fix = "`trnflow run` makes one; or name another: --store, TRNFLOW_STORE, store.root"
            raise ConfigError(f"there is no store at {self.root}", fix)

    def is_made(self) -> bool:
        """Return whether there is a store at the root, that is, a file FORMAT.json. ConfigError when this file is
        damaged or names another format than this version of trnflow uses."""
        try:
            found = read_object(self._read_format())
        except FileNotFoundError:
            return False
        except ValueError as error:
            fix = f"if the store is yours, write {canonical(FORMAT)} there; else choose another store.root"
            raise ConfigError(f"FORMAT.json of the store {self.root} is damaged: {error}", fix) from error
        if found != FORMAT:
            raise ConfigError(
                f"the store {self.root} has format {canonical(found)}, this trnflow reads and writes {canonical(FORMAT)}",
                "upgrade trnflow, if a newer one made the store; or choose another store.root",
            )
        return True

    def _read_format(self) -> bytes:
        """Read FORMAT.json: the first request of each command. After a failure of the network or of an object store, read it
        again after each of FORMAT_PAUSES. A refused permission and missing credentials are errors at once."""
        for pause in FORMAT_PAUSES if self.backend.local is None else ():
            try:
                return self.backend.read("FORMAT.json")
            except StoreError as error:
                cause = error.__cause__
                if isinstance(cause, PermissionError) or (cause and credentials_fix(cause, self.root)):
                    raise
                time.sleep(pause)
        return self.backend.read("FORMAT.json")

    def record(self, stage: str, key: str) -> Meta | None:
        """Return the record of a stage's key: the document that names the artifact that the stage made. None when there
        is no record. A damaged record is moved to the store's folder `quarantine`, and None is returned. The artifact
        is not checked."""
        name = record_name(stage, key)
        try:
            return checked_record(name, self.backend.read(name))
        except FileNotFoundError:
            return None
        except ValueError:
            self._quarantine(name)
            return None

    def records(self, stage: str, newest: int | None = None) -> list[Meta]:
        """Return the records of a stage (documents that each name the artifact that the stage made for a key), sorted
        by their time of creation (field `created`), newest first.

        newest: how many records to read, those whose files were written last; None for all. Damaged records are moved
        to the store's folder `quarantine` and are not returned. Costs one listing of the store, and one read for each
        record; the records of a remote store are read in parallel."""
        listed = [entry for entry in self.backend.entries(f"records/{stage}") if not is_unfinished(entry.name)]
        listed.sort(key=lambda entry: entry.time, reverse=True)
        keys = [document_name(entry.name) for entry in listed[:newest]]
        found = in_threads(partial(self.record, stage), keys, 1 if self.is_local else READERS)
        return sorted((record for record in found if record), key=lambda record: str(record["created"]), reverse=True)

    def publish(self, record: Meta, *, replace: bool = False) -> Meta:
        """Write a record (the document that names the artifact that a stage made for a key). This makes the stage's
        result visible to all runs. Return the record that the key has afterwards.

        When the key has a record already, the earlier record stays and is returned. With `replace` the earlier record
        is moved to the trash, and `record` takes its place.
        """
        name = f"records/{record['stage']}/{record['key']}.json"
        data = _pretty(record)
        if self.backend.create(name, data):
            return record
        earlier = self.record(record["stage"], record["key"])
        if earlier is not None and not replace:
            return earlier
        if earlier is not None:
            with contextlib.suppress(FileNotFoundError):  # another run replaces it, too
                self.backend.move(name, f"trash/{name}.{time.time_ns()}")
        if self.backend.create(name, data):
            return record
        return self.record(record["stage"], record["key"]) or record

    def retract(self, stage: str, key: str) -> None:
        """Move the record of a stage's key (the document that names the artifact that the stage made) to the store's
        folder `quarantine`, because its artifact is damaged. The key then has no result, so the next run makes the
        artifact again. The artifact's files stay."""
        self._quarantine(record_name(stage, key))

    def write_attempt(self, key: str, attempt: str, document: Meta) -> None:
        """Write the journal of an attempt (one try to make the result of a key) to `attempts/<key>/<attempt>.json`; an
        earlier journal of the same attempt is replaced. attempt: the attempt's id."""
        self.backend.replace(f"attempts/{key}/{attempt}.json", _pretty(document))

    def attempt(self, key: str, attempt: str) -> Meta:
        """Return the journal of an attempt (one try to make the result of a key), as `write_attempt` wrote it; {} when
        there is none or when it is damaged."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return read_object(self.backend.read(f"attempts/{key}/{attempt}.json"))
        return {}

    def write_run(self, run: str, document: Meta) -> None:
        """Write the document of a run (recipe, stages, keys, attempts and outcome) to `runs/<run>.json`, replacing the
        document that this run wrote before.

        As long as garbage collection keeps the run's document, it also keeps the results that the document names. If
        garbage collection moved some of these results to the trash just before this call, they are moved back.

        run: the run's id."""
        self.backend.replace(f"runs/{run}.json", _pretty(document))
        with contextlib.suppress(BlobLost):  # the next run makes lost results again
            self.secure([stage for stage in document.get("stages", []) if stage.get("artifact")])

    def secure(self, held: list[Meta], artifact: Artifact | None = None) -> None:
        """Move back from the trash the records and files that a document names, since garbage collection may have moved
        them there just before the document was written.

        held: the records (documents that name a stage's artifact), each as {"stage", "key"}; with a missing record its
        artifact is brought back, too; artifact: an artifact whose manifest (list of files) and files are needed. Costs
        about one request for each record and file. BlobLost when a record or file is neither in place nor in the trash.
        """
        secure(self.backend, held, artifact)

    def run(self, run: str) -> Meta | None:
        """Return the document of a run (recipe, stages, keys, attempts and outcome) by the run's id, as `write_run`
        wrote it, or None when there is none or when it is damaged."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return read_object(self.backend.read(f"runs/{run}.json"))
        return None

    def partial(self, key: str) -> PartialState:
        """Return access to the training states that are saved under the stage key of a training, from which an
        interrupted training resumes. No state need exist yet. Makes no request."""
        return PartialState(self.backend, self.home / "cache" / "partial" / key[:16], key)

    def waiter(self, key: str, *, run: str, attempt: str, ttl: float, patient: bool = False) -> Waiter:
        """Return a waiter for the lease of `key`: the right to make the key's result, which one run has at a time. The
        lease is taken by the waiter's method `take`, not by this call.

        run, attempt: the ids that the lease will name; ttl: seconds without a heartbeat after which others may take
        over the lease; patient: whether a holder without heartbeats keeps its lease, up to a day, while its process
        runs on this machine (used for the lease of a device)."""
        return Waiter(self.backend, key, run=run, attempt=attempt, ttl=ttl, patient=patient)

    def sweep_leases(self) -> None:
        """Remove the leases (rights to make a key's result, which one run has at a time) that have certainly ended,
        such as those of killed runs. Costs one listing when the store has no leases. Errors of the store are ignored,
        since leases also expire by themselves."""
        with contextlib.suppress(StoreError, FileNotFoundError):
            sweep_leases(self.backend)

    def check_space(self, needed: int, reserve: int) -> None:
        """Raise StoreError unless `needed` + `reserve` bytes are free: on the store's disk or, for a remote store, on
        the disk of the home folder.

        needed: the expected size in bytes of a stage's files; reserve: the bytes that must stay free when the files are
        written (`store.min_free_gb`).
        """
        place = self.backend.local or self.home
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        if free < needed + reserve:
            which, other = ("store", "store.root") if self.backend.local else ("home", "TRNFLOW_HOME")
            raise StoreError(
                f"only {free / 1e9:.1f} GB are free on the disk of the {which} ({place}), and this stage needs about "
                f"{needed / 1e9:.1f} GB with {reserve / 1e9:.1f} GB to spare",
                f"free some space, choose another {other}, or lower store.min_free_gb",
            )


def _pretty(document: Json) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True).encode()
