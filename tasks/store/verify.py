"""Check a whole store for damaged files. Each blob (a file named by the digest of its bytes) is hashed. Each JSON
document is parsed: the records (a record names the artifact that a stage made), the attempts (an attempt is the journal
of one try to make an artifact), the runs, and the roots (files below `roots/`, such as pins and champions, which say
what garbage collection must keep).

All these files are read, in parallel; training states, leases, trash and quarantine are not checked. Blobs of a remote
store are downloaded to a temporary folder. Without `repair`, nothing is changed. With `repair`, damaged files, and
records whose artifact can't be read, are moved to quarantine, so that the next run makes their results again; missing
blobs that are in the trash are brought back; damaged roots stay where they are. Blobs that nothing refers to are
counted, but are not problems, since garbage collection removes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import StoreError
from trnflow.tasks.keys.hash_cache import sha256_file
from trnflow.tasks.store.backend import Backend, Entry
from trnflow.tasks.store.garbage.numbered_roots import counting
from trnflow.tasks.store.garbage.roots import references
from trnflow.tasks.store.garbage.trash import THREADS, bring_back
from trnflow.tasks.store.layout import blob_name, checked_record, is_unfinished, read_manifest, read_object

DOCUMENTS = ("records", "attempts", "runs", "roots")


@dataclass
class Problem:
    """A damaged file of a store.

    Attributes:
        what: `corrupt`: a blob whose bytes have another digest, or a document that is malformed. `unusable`: a record
            (the document that names a stage's artifact) or a root (such as a pin or a champion) whose artifact can't be
            read; a record whose artifact is of a wrong kind; or a root whose run is missing. `missing`: a blob that was
            in the trash and was brought back.
        name: the name of the file in the store; for a file of this machine's cache, its path.
        detail: what is wrong, as text for the user.
        repaired: whether the file was moved to quarantine, brought back or, in the cache, removed.
    """

    what: str
    name: str
    detail: str = ""
    repaired: bool = False


@dataclass
class Verified:
    """The result of verifying a store.

    Attributes:
        checked: {kind of file: number of files that were checked, damaged files included}; the kinds are records,
            attempts, runs, roots, blobs and, for this machine's copies of a remote store's blobs, cached.
        bytes: the size in bytes of all blobs that were hashed.
        problems: the damaged files.
        unreferenced, unreferenced_bytes: number, and size in bytes, of the undamaged blobs that belong to no artifact
            of a record or root. Nothing is done with these blobs.
    """

    checked: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    unreferenced: int = 0
    unreferenced_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether no problem (a damaged or missing file) was found in the store, or all problems were repaired."""
        return all(problem.repaired for problem in self.problems)

    def to_json(self) -> dict[str, Json]:
        """Return the result of verifying a store as the JSON object that `trnflow verify --json` prints: "ok",
        "checked", "bytes" and "problems" as in this class, and "unreferenced": {"files": number of blobs that nothing
        refers to, "bytes": their size}."""
        return {
            "ok": self.ok,
            "checked": self.checked,
            "bytes": self.bytes,
            "problems": [vars(problem) for problem in self.problems],
            "unreferenced": {"files": self.unreferenced, "bytes": self.unreferenced_bytes},
        }


def verify(
    backend: Backend, *, repair: bool = False, cache: Path | None = None, kinds: Mapping[str, str] | None = None
) -> Verified:
    """Check all blobs (files named by the digests of their bytes) and all documents (records of stages' results,
    attempts, runs, and roots such as pins and champions) of a store, and return the problems that were found. Without
    `repair`, change nothing.

    Args:
        repair: move damaged files to the store's folder `quarantine` (but never roots), and bring back missing blobs
            from the trash.
        cache: the folder with this machine's copies of a remote store's blobs, which are then checked too, and removed
            if they are damaged and `repair` is true.
        kinds: {stage: kind of its artifacts}; artifacts of other stages may be of any kind.

    Raises:
        StoreError: the disk or the server fails.
    """
    found = _Verifier(backend, repair, kinds or {}).verify()
    if cache is not None:
        _verify_cache(cache, found, repair=repair)
    return found


class _Verifier:
    def __init__(self, backend: Backend, repair: bool, kinds: Mapping[str, str]) -> None:
        self._backend = backend
        self._repair = repair
        self._kinds = kinds
        self._found = Verified()
        self._blobs: dict[str, int] = {}
        self._manifests: dict[str, Meta | None] = {}
        self._reached: set[str] = set()

    def verify(self) -> Verified:
        documents = {name: document for kind in DOCUMENTS for name, document in self._documents(kind)}
        self._hash(_named(self._backend.entries("blobs")))
        roots = counting((name for name in documents if name.startswith("roots/")), documents.__getitem__)
        for name, document in documents.items():
            if name.startswith("records/"):
                self._record(name, document)
            elif name in roots:
                self._root(name, document)
        spare = {name: size for name, size in self._blobs.items() if name not in self._reached}
        self._found.unreferenced, self._found.unreferenced_bytes = len(spare), sum(spare.values())
        return self._found

    def _documents(self, kind: str) -> Iterator[tuple[str, Meta]]:
        """Yield (name, document) of all valid documents of a kind, and add a problem for each other one."""
        names = [entry.name for entry in _named(self._backend.entries(kind))]
        self._found.checked[kind] = len(names)
        with ThreadPoolExecutor(THREADS) as pool:
            for name, data in zip(names, pool.map(self._read, names), strict=True):
                why = _fault(name, data) if data is not None else ""
                if why:
                    self._corrupt(name, why)
                elif data is not None:
                    yield name, json.loads(data)

    def _hash(self, entries: list[Entry]) -> None:
        """Hash all blobs. Undamaged ones are added to `_blobs`, others become problems."""
        self._found.checked["blobs"] = len(entries)
        with tempfile.TemporaryDirectory() as folder:
            workers = (os.cpu_count() or 1) if self._backend.local else THREADS
            with ThreadPoolExecutor(workers) as pool:
                digests = pool.map(lambda entry: self._digest(entry.name, Path(folder)), entries)
                for entry, digest in zip(entries, digests, strict=True):
                    self._found.bytes += entry.size
                    if digest == _digest_in(entry.name):
                        self._blobs[entry.name] = entry.size
                    elif digest is not None:
                        self._corrupt(entry.name, f"its bytes are {digest[:19]}")

    def _digest(self, name: str, folder: Path) -> str | None:
        """Return the digest of a blob's bytes; None when the blob was removed since the listing."""
        try:
            if self._backend.local is not None:
                return sha256_file(self._backend.local / name)
            aside = folder / name.replace("/", "-")
            self._backend.fetch(name, aside)
            digest = sha256_file(aside)
            aside.unlink()
            return digest
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"reading {name} failed: {error}", "check the disk the store lies on") from error

    def _record(self, name: str, document: Meta) -> None:
        why = self._lacks(document["artifact"]) or self._is_another_kind(document)
        if why and self._backend.size(name) is not None:  # unless it was collected in the meantime
            repaired = self._repair and self._quarantine(name)
            self._found.problems.append(Problem("unusable", name, why, repaired))

    def _root(self, name: str, document: Meta) -> None:
        """Check a root. A damaged root is never repaired, because only the person who made it knows what it should
        keep."""
        for kind, value in references(document):
            if kind == "run" and self._backend.size(f"runs/{value}.json") is None:
                self._found.problems.append(Problem("unusable", name, f"there is no run {value}"))
            why = self._lacks(value) if kind == "artifact" else ""
            if why:
                self._found.problems.append(Problem("unusable", name, why))

    def _lacks(self, artifact: str) -> str:
        """Return what is wrong with an artifact, or "". Its manifest and blobs are noted as referenced."""
        manifest = self._manifest(artifact)
        if manifest is None:
            return f"its manifest {artifact[:19]} is missing, corrupt or forged"
        for path, size, digest in manifest["files"]:
            if self._blob(digest) != size:
                return f"{path} ({digest[:19]}) is missing or corrupt"
        return ""

    def _is_another_kind(self, record: Meta) -> str:
        manifest, makes = self._manifest(record["artifact"]), self._kinds.get(record["stage"])
        if manifest is None or makes in (None, manifest["kind"]):
            return ""
        return (
            f"its artifact {record['artifact'][:19]} is of kind {manifest['kind']}, and {record['stage']} makes {makes}"
        )

    def _manifest(self, artifact: str) -> Meta | None:
        if artifact not in self._manifests:
            sound = self._blob(artifact) is not None
            data = self._read(blob_name(artifact)) if sound else None
            self._manifests[artifact] = read_manifest(data, artifact) if data else None
        return self._manifests[artifact]

    def _blob(self, digest: str) -> int | None:
        """Return the size in bytes of an undamaged blob, or None. With `repair`, a blob that is in the trash is first
        moved back."""
        name = blob_name(digest)
        if name not in self._reached:
            self._reached.add(name)
            if name not in self._blobs and self._repair:
                self._bring_back(name)
        return self._blobs.get(name)

    def _bring_back(self, name: str) -> None:
        if bring_back(self._backend, [name]):
            return
        with tempfile.TemporaryDirectory() as folder:
            if self._digest(name, Path(folder)) == _digest_in(name):
                self._blobs[name] = self._backend.size(name) or 0
                self._found.problems.append(Problem("missing", name, "it was in the trash", True))

    def _corrupt(self, name: str, detail: str) -> None:
        # what a root keeps, and which model is champion, is for its owner to say
        repaired = self._repair and not name.startswith("roots/") and self._quarantine(name)
        self._found.problems.append(Problem("corrupt", name, detail, repaired))

    def _quarantine(self, name: str) -> bool:
        with contextlib.suppress(FileNotFoundError):  # a run has moved it back
            self._backend.move(name, f"quarantine/{name}.{time.time_ns()}")
        return True

    def _read(self, name: str) -> bytes | None:
        try:
            return self._backend.read(name)
        except FileNotFoundError:
            return None


def _fault(name: str, data: bytes) -> str:
    """Return why the bytes are not a valid document for this file name, or ""."""
    try:
        checked_record(name, data) if name.startswith("records/") else read_object(data)
    except ValueError as error:
        return str(error)
    return ""


def _named(entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if not is_unfinished(entry.name)]


def _digest_in(name: str) -> str:
    return f"sha256:{name.rsplit('/', 1)[1]}"


def _verify_cache(cache: Path, found: Verified, *, repair: bool) -> None:
    """Hash the blobs in the cache; with `repair` remove the corrupt ones, which are then fetched again when needed."""
    paths = sorted(path for path in cache.glob("blobs/sha256/??/*") if not path.name.startswith("."))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, digest in zip(paths, pool.map(sha256_file, paths), strict=True):
            found.bytes += path.stat().st_size
            if digest != _digest_in(str(path)):
                if repair:
                    path.unlink(missing_ok=True)
                found.problems.append(Problem("corrupt", str(path), "in the cache on this machine", repair))
    found.checked["cached"] = len(paths)
