"""Artifacts, records and runs in a store: what the stage runner speaks to.

A crash leaves only blobs that nothing refers to: blobs come first, then the manifest, a sync barrier, the attempt, and the record
last and once. A hit costs O(records), never O(bytes); bytes are verified when a stage first opens them on this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.artifact import Artifact, File, Json, Meta, checked_path
from tasks.errors import BlobLost, ConfigError, ReadOnlyStore, StoreError
from tasks.fingerprint import canonical
from tasks.memo import Memo, sha256_bytes, sha256_file, sha256_files, stamp
from tasks.store.backend import Backend, Count, open_backend
from tasks.store.folders import files_below
from tasks.store.lease import Waiter, sweep_leases
from tasks.store.names import blob_name, checked_manifest, checked_record, read_object, record_name
from tasks.store.partial import PartialState
from tasks.store.pull import Told, pull_all
from tasks.store.trash import secure

FORMAT = {"format": 1, "hash": "sha256"}


class Store:
    """root: a folder or an fsspec URL; home: the project's local state (`.trnflow`): memo and the cache of remote blobs."""

    def __init__(self, root: str, home: Path, memo: Memo | None = None) -> None:
        self.root = root
        self.home = home
        self.memo = memo or Memo(home / "memo.db")
        self._backend: Backend = open_backend(root)
        self._cache = home / "cache" / "blobs"

    @property
    def backend(self) -> Backend:
        """For what reads the store as a whole: verification, garbage collection."""
        return self._backend

    @property
    def cache(self) -> Path:
        """Where this machine keeps blobs of a remote store, laid out as in the store."""
        return self._cache

    @property
    def is_local(self) -> bool:
        return self._backend.local is not None

    def prepare(self) -> None:
        """Make the store, or check that it is one of ours and that creation is exclusive. StoreError, ConfigError."""
        if self.is_made():
            return
        data = canonical(FORMAT).encode()
        try:
            exclusive = not (self._backend.create("FORMAT.json", data) and self._backend.create("FORMAT.json", data))
        except FileNotFoundError as error:
            fix = "make the bucket, or name another: --store, TRNFLOW_STORE, store.root"
            raise StoreError(f"there is no place for the store {self.root}: {error}", fix) from error
        if not exclusive:
            raise StoreError(
                f"the store {self.root} does not create files exclusively: two runs could overwrite each other's results",
                "use a local folder, or an object store with conditional puts (S3, GCS, R2, moto)",
            )
        self.check()

    def check(self) -> None:
        """ConfigError when there is no store at the root, or one of another format. Writes nothing."""
        if not self.is_made():
            fix = "`trnflow run` makes one; or name another: --store, TRNFLOW_STORE, store.root"
            raise ConfigError(f"there is no store at {self.root}", fix)

    def is_made(self) -> bool:
        """Whether there is a store at the root. ConfigError when it is of another format."""
        try:
            found = read_object(self._backend.read("FORMAT.json"))
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

    # Artifacts

    def ingest(self, folder: Path, kind: str, meta: Meta) -> Artifact:
        """Take all files below `folder` (moved, where the filesystem is the same) and return the artifact they make."""
        paths = files_below(folder)
        digests = sha256_files([f"{folder}/{path}" for path in paths])
        files = []
        for path, digest in zip(paths, digests, strict=True):
            files.append(File(checked_path(path), os.stat(f"{folder}/{path}").st_size, digest))
            self._keep(f"{folder}/{path}", files[-1])
        manifest = canonical({"kind": kind, "meta": meta, "files": [list(file) for file in files]}).encode()
        digest = sha256_bytes(manifest)
        self._backend.create(blob_name(digest), manifest)
        self._backend.sync()
        self.memo.save()
        return Artifact(digest, kind, meta, tuple(files))

    def artifact(self, digest: str) -> Artifact:
        """The artifact of a manifest's digest, verified. BlobLost when the manifest is missing, corrupt or of no artifact."""
        name = blob_name(digest)
        try:
            document, files = checked_manifest(self._backend.read(name), digest)
        except FileNotFoundError as error:
            raise BlobLost(f"the manifest {digest} is not in the store {self.root}", "", digest) from error
        except ValueError as error:
            self._quarantine(name)
            raise BlobLost(
                f"the manifest {digest} in the store {self.root} was corrupt: {error}; quarantined", "", digest
            ) from error
        return Artifact(digest, document["kind"], document["meta"], files)

    def link(self, digest: str) -> str:
        """Where the bytes of a digest lie, as a URL."""
        root = self._backend.local.as_uri() if self._backend.local else self.root
        return f"{root}/{blob_name(digest)}"

    def missing(self, artifact: Artifact) -> File | None:
        """A file whose blob is gone or has the wrong size, without reading bytes; remote blobs are checked when fetched."""
        if not self.is_local:
            return None
        return next((file for file in artifact.files if self._backend.size(blob_name(file.digest)) != file.size), None)

    def checkout(self, artifact: Artifact, folder: Path, told: Told = lambda done, total: None) -> Path:
        """Lay out the artifact below `folder` as read-only links to verified blobs. BlobLost names what is not sound.

        told: hears (bytes done, bytes in all) of what is pulled or checked; not called when all is known already."""
        folder.mkdir(parents=True, exist_ok=True)
        for blob, target in self._pulled(artifact, folder, told):
            os.symlink(blob, target)
        return folder

    def copy_out(self, artifact: Artifact, folder: Path) -> None:
        """A copy of the artifact that the user owns and may change."""
        for blob, target in self._pulled(artifact, folder, lambda done, total: None):
            shutil.copyfile(blob, target)

    def changed(self, artifact: Artifact) -> File | None:
        """A file of a checked-out artifact whose blob was changed since it was verified, or None. Costs a stat a file."""
        return next(
            (file for file in artifact.files if not self._is_unchanged(self._local_blob(file.digest), file)), None
        )

    # Records, attempts, runs

    def record(self, stage: str, key: str) -> Meta | None:
        """The record of a key, or None."""
        name = record_name(stage, key)
        try:
            return checked_record(name, self._backend.read(name))
        except FileNotFoundError:
            return None
        except ValueError:
            self._quarantine(name)
            return None

    def records(self, stage: str) -> list[Meta]:
        """All records of a stage, newest first."""
        names = self._backend.names(f"records/{stage}")
        found = [self.record(stage, name.rsplit("/", 1)[1].removesuffix(".json")) for name in names]
        return sorted((record for record in found if record), key=lambda record: str(record["created"]), reverse=True)

    def publish(self, record: Meta, *, replace: bool = False) -> Meta:
        """Make a result visible; returns the record that counts: an earlier one of the same key wins, unless replaced."""
        name = f"records/{record['stage']}/{record['key']}.json"
        data = json.dumps(record, indent=1, sort_keys=True).encode()
        if self._backend.create(name, data):
            return record
        earlier = self.record(record["stage"], record["key"])
        if earlier is not None and not replace:
            return earlier
        if earlier is not None:
            self._backend.move(name, f"trash/{name}.{time.time_ns()}")
        self._backend.create(name, data)
        return record

    def retract(self, stage: str, key: str) -> None:
        """Take a record whose artifact turned out damaged out of the way, so that the next run makes it anew."""
        self._quarantine(record_name(stage, key))

    def write_attempt(self, key: str, attempt: str, document: Meta) -> None:
        self._backend.replace(f"attempts/{key}/{attempt}.json", _pretty(document))

    def attempt(self, key: str, attempt: str) -> Meta:
        """The journal of an attempt; empty when it was never finished or is gone."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return read_object(self._backend.read(f"attempts/{key}/{attempt}.json"))
        return {}

    def write_run(self, run: str, document: Meta) -> None:
        """Write what keeps a run's results from being collected, then see that none was collected just before."""
        self._backend.replace(f"runs/{run}.json", _pretty(document))
        with contextlib.suppress(BlobLost):  # what is lost is made anew by the next run
            self.secure([stage for stage in document.get("stages", []) if stage.get("artifact")])

    def secure(self, held: list[Meta], artifact: Artifact | None = None) -> None:
        """See that records ({"stage", "key"} each) and an artifact are there, now that something written names them; bring
        them back where garbage collection was faster. BlobLost when they are gone. Costs a look a record and a file."""
        secure(self._backend, held, artifact)

    def run(self, run: str) -> Meta | None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return read_object(self._backend.read(f"runs/{run}.json"))
        return None

    def runs(self) -> list[str]:
        """Ids of all runs, oldest first (they begin with their UTC time)."""
        return [name.rsplit("/", 1)[1].removesuffix(".json") for name in self._backend.names("runs")]

    def partial(self, key: str) -> PartialState:
        return PartialState(self._backend, self.home / "cache" / "partial" / key[:16], key)

    def waiter(self, key: str, *, run: str, attempt: str, ttl: float) -> Waiter:
        """This process's turn at making `key`; ttl in seconds."""
        return Waiter(self._backend, key, run=run, attempt=attempt, ttl=ttl)

    def sweep_leases(self) -> None:
        """Remove the leases that killed runs left. Costs one listing; failing is no one's concern."""
        with contextlib.suppress(StoreError, FileNotFoundError):
            sweep_leases(self._backend)

    def check_space(self, needed: int, reserve: int) -> None:
        """StoreError unless the local disk has room for `needed` bytes and `reserve` bytes stay free."""
        place = self._backend.local or self.home
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        if free < needed + reserve:
            raise StoreError(
                f"only {free / 1e9:.1f} GB are free where the store is, and this stage needs about {needed / 1e9:.1f} GB "
                f"with {reserve / 1e9:.1f} GB to spare",
                "free some space, choose another store.root, or lower store.min_free_gb",
            )

    # Blobs

    def _keep(self, path: str, file: File) -> None:
        name = blob_name(file.digest)
        if self._backend.size(name) == file.size:
            return
        self._backend.adopt(name, path)
        if self.is_local:
            blob = self._local_blob(file.digest)
            self.memo.put("blob", blob, stamp(blob), file.digest)

    def _pulled(self, artifact: Artifact, folder: Path, told: Told) -> Iterator[tuple[str, str]]:
        """(verified blob on this machine, its place below `folder`) of each file; the places' folders are made."""
        unknown = [file for file in artifact.files if not self._is_known(self._local_blob(file.digest), file)]
        pull_all(self._pull, unknown, told)
        self.memo.save()
        for inside in {os.path.dirname(checked_path(file.path)) for file in artifact.files}:
            os.makedirs(folder / inside, exist_ok=True)
        for file in artifact.files:
            yield self._local_blob(file.digest), f"{folder}/{file.path}"

    def _local_blob(self, digest: str) -> str:
        """Where the bytes lie, or would lie, on this machine."""
        return f"{self._backend.local or self._cache}/{blob_name(digest)}"

    def _is_known(self, blob: str, file: File) -> bool:
        try:
            return bool(self.memo.get("blob", blob, stamp(blob)) == file.digest)
        except FileNotFoundError:
            return False

    def _is_unchanged(self, blob: str, file: File) -> bool:
        """A move to trash and back leaves other times on the same bytes: only then they are read."""
        return self._is_known(blob, file) or (os.path.exists(blob) and sha256_file(blob) == file.digest)

    def _pull(self, file: File, count: Count) -> None:
        """Have a blob on this machine, its digest checked; fetched from a remote store if need be."""
        count(0)
        blob = self._local_blob(file.digest)
        if self.is_local:
            self._verify(blob, file)
            count(file.size)
        elif os.path.exists(blob) and sha256_file(blob) == file.digest:
            count(file.size)
        else:
            self._fetch(file, Path(blob), count)
        self.memo.put("blob", blob, stamp(blob), file.digest)

    def _verify(self, blob: str, file: File) -> None:
        if not os.path.exists(blob):
            raise BlobLost(f"the blob of {file.path} ({file.digest}) is missing", "", file.digest)
        if sha256_file(blob) != file.digest:
            self._quarantine(blob_name(file.digest))
            raise BlobLost(f"the blob of {file.path} ({file.digest}) was corrupt: quarantined", "", file.digest)

    def _fetch(self, file: File, blob: Path, count: Count) -> None:
        blob.parent.mkdir(parents=True, exist_ok=True)
        aside = blob.with_name(f".{os.getpid()}-{time.monotonic_ns()}")
        try:
            self._backend.fetch(blob_name(file.digest), aside, count)
            if sha256_file(aside) != file.digest:
                self._quarantine(blob_name(file.digest))
                raise BlobLost(f"the blob of {file.path} ({file.digest}) was corrupt: quarantined", "", file.digest)
            aside.chmod(0o444)
            aside.replace(blob)
        except FileNotFoundError as error:
            raise BlobLost(f"the blob of {file.path} ({file.digest}) is missing", "", file.digest) from error
        finally:
            aside.unlink(missing_ok=True)

    def _quarantine(self, name: str) -> None:
        """In a store that can only be read it stays where it is: what is damaged is a miss all the same."""
        with contextlib.suppress(FileNotFoundError, ReadOnlyStore):
            self._backend.move(name, f"quarantine/{name}.{time.time_ns()}")


def _pretty(document: Json) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True).encode()
