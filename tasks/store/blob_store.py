"""Artifacts in a store: make them from folders, lay them out, verify their bytes."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from trnflow.tasks.artifact import Artifact, File, Meta, checked_path
from trnflow.tasks.errors import BlobLost, ReadOnlyStore
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.keys.hash_cache import (
    Memo,
    Stamp,
    in_threads,
    sha256_bytes,
    sha256_file,
    sha256_files,
    size_in,
    stamp,
)
from trnflow.tasks.store.backend import Backend, CountBytes, storage_errors
from trnflow.tasks.store.folders import files_below
from trnflow.tasks.store.layout import blob_name, checked_manifest, file_name
from trnflow.tasks.store.location import open_backend
from trnflow.tasks.store.pull import ReportBytes, pull_all


class BlobStats(NamedTuple):
    """The state of blobs by stat alone. missing: the first that is gone or of another size; changed: other stamps."""

    missing: File | None
    changed: list[File]


class BlobStore:
    """The artifacts of a store, without its records.

    root: a folder or an fsspec URL; home: has the hash cache and, for a remote store, copies of its blobs (`cache`).
    """

    def __init__(self, root: str, home: Path, memo: Memo | None = None) -> None:
        self.root = root
        self.home = home
        self.memo = memo or Memo(home / "memo.db")
        self.backend: Backend = open_backend(root)
        self.cache = home / "cache" / "blobs"

    @property
    def is_local(self) -> bool:
        """Whether the store is a folder of this machine."""
        return self.backend.local is not None

    def ingest(self, folder: Path, kind: str, meta: Meta, *, cache: bool = True) -> Artifact:
        """Write all files below `folder` and their manifest to the store, and return the artifact.

        Files are moved, or copied to another filesystem or remote store. cache: whether a remote store's files then
        move to this machine's cache.
        """
        paths = files_below(folder)
        digests = sha256_files([f"{folder}/{path}" for path in paths])
        files = []
        for path, digest in zip(paths, digests, strict=True):
            files.append(File(checked_path(path), os.stat(f"{folder}/{path}").st_size, digest))
            self._keep(f"{folder}/{path}", files[-1], cache)
        manifest = canonical({"kind": kind, "meta": meta, "files": [list(file) for file in files]}).encode()
        digest = sha256_bytes(manifest)
        self.backend.create(blob_name(digest), manifest)
        self.backend.sync()
        self.memo.save()
        return Artifact(digest, kind, meta, tuple(files))

    def artifact(self, digest: str) -> Artifact:
        """Return an artifact; its files are not looked at. Raises BlobLost without a sound manifest."""
        name = blob_name(digest)
        try:
            document, files = checked_manifest(self.backend.read(name), digest)
        except FileNotFoundError as error:
            raise BlobLost(f"the manifest {digest} is not in the store {self.root}", "", digest) from error
        except ValueError as error:
            self._quarantine(name)
            raise BlobLost(
                f"the manifest {digest} in the store {self.root} was corrupt: {error}; quarantined", "", digest
            ) from error
        return Artifact(digest, document["kind"], document["meta"], files)

    def url(self, digest: str) -> str:
        """Return the URL of a blob, whether or not it exists."""
        root = self.backend.local.as_uri() if self.backend.local else self.root
        return f"{root}/{blob_name(digest)}"

    def missing(self, artifact: Artifact) -> File | None:
        """Return the first file whose blob is gone or has another size; None for a remote store."""
        # a remote store's blobs are verified when they are fetched
        return self.blob_stats(artifact).missing

    def blob_stats(self, artifact: Artifact) -> BlobStats:
        """Compare blobs with the manifest and the hash cache, without reading them."""
        if not self.is_local:
            return BlobStats(None, [])
        stamps: list[Stamp] = []
        with storage_errors(self.root, f"the blobs of {artifact.digest}", "looking at"):
            for file in artifact.files:
                try:
                    stamps.append(stamp(f"{self.backend.local}/{file_name(file)}"))
                except FileNotFoundError:
                    return self._stats_of(artifact, stamps)
        # the stamps as one value: reading 100,000 of them from the hash cache takes longer than making them
        together = sha256_bytes("\n".join(stamps).encode())
        if self.memo.one("artifact", artifact.digest, together):
            return BlobStats(None, [])
        seen = self._stats_of(artifact, stamps)
        if seen == BlobStats(None, []):
            self.memo.put("artifact", artifact.digest, together, True)
        return seen

    def _stats_of(self, artifact: Artifact, stamps: list[Stamp]) -> BlobStats:
        """Compare stamps with the manifest and the hash cache; the first file without stamp is missing."""
        changed: list[File] = []
        for file, now in zip(artifact.files, stamps, strict=False):
            if size_in(now) != file.size:
                return BlobStats(file, changed)
            if self._has_changed(self._local_blob(file.digest), now):
                changed.append(file)
        return BlobStats(artifact.files[len(stamps)] if len(stamps) < len(artifact.files) else None, changed)

    def recheck(self, files: Iterable[File]) -> list[File]:
        """Hash the blobs of these files; return the files whose blobs are missing or damaged, which are quarantined."""
        by_digest = {file.digest: file for file in files}
        with storage_errors(self.root, "blobs", "reading"):
            sound = dict(zip(by_digest, in_threads(self._sound_stamp, [*by_digest], os.cpu_count() or 1), strict=True))
        for digest, now in sound.items():
            if now:
                self.memo.put("blob", self._local_blob(digest), now, digest)
            else:
                self._quarantine(blob_name(digest))
        self.memo.save()
        return [file for digest, file in by_digest.items() if not sound[digest]]

    def link_files(self, artifact: Artifact, folder: Path, report: ReportBytes = lambda done, total: None) -> Path:
        """Lay out the artifact as links to verified, read-only blobs below `folder`, which is created and returned.

        report: called with (bytes done, bytes in all). Raises BlobLost.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for blob, target in self._pulled(artifact, folder, report):
            os.symlink(blob, target)
        return folder

    def copy_files(self, artifact: Artifact, folder: Path, *, cache: bool = True) -> None:
        """Copy the artifact's files into `folder`, where they may be changed. Raises BlobLost.

        cache: whether downloaded blobs stay in this machine's cache.
        """
        if cache or self.is_local:
            for blob, target in self._pulled(artifact, folder, lambda done, total: None):
                shutil.copyfile(blob, target)
            return

        targets = [folder / checked_path(file.path) for file in artifact.files]
        for inside in {place.parent for place in targets}:
            inside.mkdir(parents=True, exist_ok=True)
        first = {file.digest: file for file in reversed(artifact.files)}

        def copy(file: File, count: CountBytes) -> None:
            blob = self._local_blob(file.digest)
            if self._is_known(blob, file):
                shutil.copyfile(blob, folder / file.path)
            else:
                self._fetch(file, folder / file.path, count)

        pull_all(copy, [*first.values()], lambda done, total: None)
        for file, place in zip(artifact.files, targets, strict=True):
            if file != first[file.digest]:  # of files with the same bytes one is downloaded
                shutil.copyfile(folder / first[file.digest].path, place)

    def changed(self, artifact: Artifact) -> File | None:
        """Return the first file whose blob no longer has its digest: a stage wrote to its inputs. A stat a file."""
        for file in artifact.files:
            blob = self._local_blob(file.digest)
            # a changed stamp alone proves nothing: a move to the trash and back changes it
            if not self._is_known(blob, file) and not (os.path.exists(blob) and sha256_file(blob) == file.digest):
                return file
        return None

    def _keep(self, path: str, file: File, cache: bool) -> None:
        """Put a file that was just hashed into the store."""
        name = blob_name(file.digest)
        blob = self._local_blob(file.digest)
        there = self.backend.size(name) == file.size
        if self.is_local and there and not self._has_changed(blob, stamp(blob)):
            return
        if self.is_local or not there:
            self.backend.move_in(name, path)
        if self.is_local:
            self.memo.put("blob", blob, stamp(blob), file.digest)
        elif cache and not os.path.islink(path):
            # the next stage then downloads nothing; where this fails, the blob is downloaded when it is needed
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(blob), exist_ok=True)
                os.chmod(path, 0o444)
                os.replace(path, blob)
                self.memo.put("blob", blob, stamp(blob), file.digest)

    def _pulled(self, artifact: Artifact, folder: Path, report: ReportBytes) -> Iterator[tuple[str, str]]:
        """Verify or fetch each blob, and yield (blob on this machine, path below `folder`) of each file."""
        unknown = [file for file in artifact.files if not self._is_known(self._local_blob(file.digest), file)]
        pull_all(self._pull, unknown, report)
        self.memo.save()
        for inside in {os.path.dirname(checked_path(file.path)) for file in artifact.files}:
            os.makedirs(folder / inside, exist_ok=True)
        for file in artifact.files:
            yield self._local_blob(file.digest), f"{folder}/{file.path}"

    def _local_blob(self, digest: str) -> str:
        """Return a blob's path on this machine, whether or not it exists."""
        return f"{self.backend.local or self.cache}/{blob_name(digest)}"

    def _has_changed(self, blob: str, now: Stamp) -> bool:
        """Return whether a blob was verified under another stamp."""
        return self.memo.last("blob", blob) not in (None, now)

    def _sound_stamp(self, digest: str) -> Stamp:
        """Return a blob's stamp from before reading if its bytes have the digest, else ""."""
        blob = self._local_blob(digest)
        try:
            now = stamp(blob)
            return now if sha256_file(blob) == digest else ""
        except FileNotFoundError:
            return ""

    def _is_known(self, blob: str, file: File) -> bool:
        try:
            return bool(self.memo.get("blob", blob, stamp(blob)) == file.digest)
        except FileNotFoundError:
            return False

    def _pull(self, file: File, count: CountBytes) -> None:
        """Check a blob on this machine; fetch it first from a remote store."""
        count(0)
        blob = self._local_blob(file.digest)
        before = stamp(blob) if os.path.exists(blob) else None  # before reading: a later change must be seen
        if before is not None and sha256_file(blob) == file.digest:
            count(file.size)
        elif self.is_local:
            raise self._lost(file, is_corrupt=before is not None)
        else:
            self._fetch(file, Path(blob), count, mode=0o444)
            before = None
        self.memo.put("blob", blob, before or stamp(blob), file.digest)

    def _fetch(self, file: File, target: Path, count: CountBytes, mode: int | None = None) -> None:
        """Download a blob and verify it. mode: the file's permissions."""
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{os.getpid()}-{time.monotonic_ns()}")
        try:
            self.backend.fetch(blob_name(file.digest), aside, count)
            if sha256_file(aside) != file.digest:
                raise self._lost(file, is_corrupt=True)
            if mode is not None:
                aside.chmod(mode)
            aside.replace(target)
        except FileNotFoundError as error:
            raise self._lost(file, is_corrupt=False) from error
        finally:
            aside.unlink(missing_ok=True)

    def _lost(self, file: File, *, is_corrupt: bool) -> BlobLost:
        """Quarantine a corrupt blob, and return the error for it."""
        if is_corrupt:
            self._quarantine(blob_name(file.digest))
        state = "was corrupt: quarantined" if is_corrupt else "is missing"
        return BlobLost(f"the blob of {file.path} ({file.digest}) {state}", "", file.digest)

    def _quarantine(self, name: str) -> None:
        """Move a damaged file to quarantine."""
        # in a store that can only be read a damaged file counts as missing
        with contextlib.suppress(FileNotFoundError, ReadOnlyStore):
            self.backend.move(name, f"quarantine/{name}.{time.time_ns()}")
