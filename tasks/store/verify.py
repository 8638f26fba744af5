"""Check a whole store: hash each blob, check each JSON document.

The other files of partial states, trash and quarantine are left out; a remote store's blobs are downloaded. What the last
check found is kept in `<home>/verified/<root>.json`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, cast

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.documents import Manifest
from trnflow.tasks.errors import StoreError
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.keys.hash_cache import in_threads, sha256_file, sha256_files
from trnflow.tasks.store.backend import Backend, Entry, is_unfinished
from trnflow.tasks.store.document_check import KINDS, checked_document, is_document, is_entry
from trnflow.tasks.store.garbage.mark import references
from trnflow.tasks.store.garbage.trash import THREADS, bring_back
from trnflow.tasks.store.layout import FORMAT, blob_name, read_manifest, read_shape
from trnflow.tasks.store.ledger import by_recipe, protected, quoted_name
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.redaction import scrub
from trnflow.tasks.system.whole_file import write_whole

# where a folder lies in the place of a file
FILES = {"blobs": "blobs/sha256/??/*/", "records": "records/*/*.json/"}
# a file's own faults; any other error is the backend's
UNREADABLE = {errno.ELOOP, errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.ENXIO, errno.ENAMETOOLONG}


@dataclass
class Damage:
    """A damaged file of a store.

    Attributes:
        what: `corrupt` (other bytes, or malformed), `unusable` (a record or root without what it names), `missing` (a
            blob that came back from the trash).
        name: In the store, or a path in this machine's cache.
        detail: What is wrong, for the user.
        repaired: Whether it was quarantined, brought back or removed from the cache.
    """

    what: str
    name: str
    detail: str = ""
    repaired: bool = False


@dataclass
class Verified:
    """The result of verifying a store.

    Attributes:
        checked: {records, attempts, runs, roots, leases, partial, blobs, cached: number of files}.
        bytes: The size of all hashed blobs.
        unreferenced, unreferenced_bytes: Sound blobs of no record or root.
    """

    checked: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    problems: list[Damage] = field(default_factory=list)
    unreferenced: int = 0
    unreferenced_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged, or all was repaired."""
        return all(problem.repaired for problem in self.problems)

    def to_json(self) -> dict[str, Json]:
        """Return what `trnflow verify --json` prints."""
        return {
            "ok": self.ok,
            "checked": self.checked,
            "bytes": self.bytes,
            "problems": [vars(problem) for problem in self.problems],
            "unreferenced": {"files": self.unreferenced, "bytes": self.unreferenced_bytes},
        }


def verify(
    backend: Backend,
    *,
    repair: bool = False,
    cache: Path | None = None,
    kinds: Mapping[str, str] | None = None,
    fault: Callable[[str, Meta], str] = lambda stage, meta: "",
) -> Verified:
    """Check a store; with `repair` quarantine damaged files, and bring blobs back. Raises StoreError.

    kinds: {stage: kind of its artifacts}; fault: says what is wrong with a stage's metadata.
    """
    # this machine's copies of a remote store's blobs are looked at last
    result = _Verifier(backend, repair, kinds or {}, fault).verify()
    if cache is not None:
        _verify_cache(cache, result, repair=repair)
    return result


class _Verifier:
    def __init__(
        self, backend: Backend, repair: bool, kinds: Mapping[str, str], fault: Callable[[str, Meta], str]
    ) -> None:
        self._backend = backend
        self._repair = repair
        self._kinds = kinds
        self._fault = fault
        self._found = Verified()
        self._blobs: dict[str, int] = {}
        self._manifests: dict[str, Manifest | None] = {}
        self._reached: set[str] = set()

    def verify(self) -> Verified:
        self._format()
        documents = {name: document for kind in KINDS for name, document in self._documents(kind)}
        self._hash(_named(self._entries("blobs")))
        for name, document in documents.items():
            if name.startswith("records/"):
                self._record(name, document)
        for places in by_recipe(name for name in documents if name.startswith("roots/")):
            try:
                for name, named in protected(places, documents.__getitem__):
                    self._root(name, named)
            except StoreError as error:  # it names no digest, or, of a ledger, an entry that is missing or damaged
                self._found.problems.append(Damage("unusable", places[0].rpartition("/")[0], error.message))
        spare = {name: size for name, size in self._blobs.items() if name not in self._reached}
        self._found.unreferenced, self._found.unreferenced_bytes = len(spare), sum(spare.values())
        return self._found

    def _format(self) -> None:
        data = self._read("FORMAT.json")
        if isinstance(data, bytes) and (why := _fault("FORMAT.json", data)):
            self._corrupt("FORMAT.json", why)
            if self._repair:
                self._backend.create("FORMAT.json", canonical(FORMAT).encode())

    def _documents(self, kind: str) -> Iterator[tuple[str, Meta]]:
        """Yield (name, document) of all valid documents of a kind; add a problem for each other."""
        names = [entry.name for entry in _named(self._entries(kind)) if is_document(entry.name)]
        self._found.checked[kind] = len(names)
        with ThreadPoolExecutor(THREADS) as pool:
            for name, data in zip(names, pool.map(self._read, names), strict=True):
                if isinstance(data, OSError):
                    self._corrupt(name, f"it can't be read: {data.strerror}")
                elif data is not None and (why := _fault(name, data)):
                    self._corrupt(name, why)
                elif data is not None and kind not in ("leases", "partial"):
                    yield name, checked_document(name, data)

    def _entries(self, prefix: str) -> list[Entry]:
        """List a folder's files; a folder in place of a blob or record becomes a problem, and is left out."""
        entries = self._backend.entries(prefix)
        if self._backend.local is None or prefix not in FILES:
            return entries
        folders = [path.relative_to(self._backend.local).as_posix() for path in self._backend.local.glob(FILES[prefix])]
        for name in folders:
            self._corrupt(name, "a folder lies in its place")
        return [entry for entry in entries if not entry.name.startswith(tuple(f"{name}/" for name in folders))]

    def _hash(self, entries: list[Entry]) -> None:
        """Hash all blobs. Sound ones are added to `_blobs`, others become problems."""
        self._found.checked["blobs"] = len(entries)
        with tempfile.TemporaryDirectory() as folder:
            workers = (os.cpu_count() or 1) if self._backend.local else THREADS
            digests = in_threads(lambda entry: self._digest(entry.name, Path(folder)), entries, workers)
        for entry, digest in zip(entries, digests, strict=True):
            self._found.bytes += entry.size
            if digest == _digest_in(entry.name):
                self._blobs[entry.name] = entry.size
            elif isinstance(digest, OSError):
                self._corrupt(entry.name, f"it can't be read: {digest.strerror}")
            elif digest is not None:
                self._corrupt(entry.name, f"its bytes are {digest[:19]}")

    def _digest(self, name: str, folder: Path) -> str | OSError | None:
        """Return a blob's digest, or why it can't be read; None when it was removed since the listing."""
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
            if error.errno in UNREADABLE:
                return error
            raise StoreError(f"reading {name} failed: {error}", "check the disk the store lies on") from error

    def _record(self, name: str, document: Meta) -> None:
        why = self._lacks(document["artifact"]) or self._is_no_output(document)
        if why and self._backend.size(name) is not None:  # unless it was collected in the meantime
            repaired = self._repair and self._quarantine(name)
            self._found.problems.append(Damage("unusable", name, why, repaired))

    def _root(self, name: str, document: Meta) -> None:
        # never repaired: only its maker knows what a root should keep
        for kind, value in references(document):
            if kind == "run" and self._backend.size(f"runs/{value}.json") is None:
                self._found.problems.append(Damage("unusable", name, f"there is no run {value}"))
            why = self._lacks(value) if kind == "artifact" else ""
            if why:
                self._found.problems.append(Damage("unusable", name, why))

    def _lacks(self, artifact: str) -> str:
        """Return what is wrong with an artifact, or ""; note its manifest and blobs as referenced."""
        manifest = self._manifest(artifact)
        if manifest is None:
            return f"its manifest {artifact[:19]} is missing, corrupt or forged"
        for path, size, digest in manifest["files"]:
            if self._blob(digest) != size:
                return f"{path} ({digest[:19]}) is missing or corrupt"
        return ""

    def _is_no_output(self, record: Meta) -> str:
        """Return why the record's stage can't have made its artifact, or ""."""
        manifest, makes = self._manifest(record["artifact"]), self._kinds.get(record["stage"])
        if manifest is None:
            return ""
        named = f"its artifact {record['artifact'][:19]}"
        if makes not in (None, manifest["kind"]):
            return f"{named} is of kind {manifest['kind']}, and {record['stage']} makes {makes}"
        wrong = self._fault(record["stage"], manifest["meta"])
        return wrong and f"{named} is forged, or of another version: {wrong}"

    def _manifest(self, artifact: str) -> Manifest | None:
        if artifact not in self._manifests:
            sound = self._blob(artifact) is not None
            data = self._read(blob_name(artifact)) if sound else None
            self._manifests[artifact] = read_manifest(data, artifact) if isinstance(data, bytes) and data else None
        return self._manifests[artifact]

    def _blob(self, digest: str) -> int | None:
        """Return a sound blob's size, or None; with `repair` it first comes back from the trash."""
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
                self._found.problems.append(Damage("missing", name, "it was in the trash", True))

    def _corrupt(self, name: str, detail: str) -> None:
        # what a pin keeps is for its owner to say; what an entry of a ledger said is in the entry before, or lost
        is_owned = name.startswith("roots/") and not is_entry(name)
        repaired = self._repair and not is_owned and self._quarantine(name)
        self._found.problems.append(Damage("corrupt", name, detail, repaired))

    def _quarantine(self, name: str) -> bool:
        with contextlib.suppress(FileNotFoundError):  # a run has moved it back
            self._backend.move(name, f"quarantine/{name}.{time.time_ns()}")
        return True

    def _read(self, name: str) -> bytes | OSError | None:
        try:
            return self._backend.read(name)
        except FileNotFoundError:
            return None
        except StoreError as error:
            cause = error.__cause__
            if self._backend.local is not None and isinstance(cause, OSError) and cause.errno in UNREADABLE:
                return cause
            raise


def _fault(name: str, data: bytes) -> str:
    """Return why the bytes are not a valid document for this file name, or ""."""
    try:
        checked_document(name, data)
    except ValueError as error:
        return str(error)
    return ""


def _named(entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if not is_unfinished(entry.name)]


def _digest_in(name: str) -> str:
    return f"sha256:{name.rsplit('/', 1)[1]}"


def _verify_cache(cache: Path, result: Verified, *, repair: bool) -> None:
    """Hash the cache's blobs; with `repair` remove corrupt ones."""
    paths = sorted(path for path in cache.glob("blobs/sha256/??/*") if not path.name.startswith("."))
    for path, digest in zip(paths, sha256_files(paths), strict=True):
        result.bytes += path.stat().st_size
        if digest != _digest_in(str(path)):
            if repair:
                path.unlink(missing_ok=True)
            result.problems.append(Damage("corrupt", str(path), "in the cache on this machine", repair))
    result.checked["cached"] = len(paths)


def note_verified(home: Path, root: str, result: Verified) -> None:
    """Write down how many files are damaged and were not repaired."""
    damaged = sum(not problem.repaired for problem in result.problems)
    with contextlib.suppress(OSError):  # a full disk
        write_whole(_file(home, root), json.dumps({"created": now(), "damaged": damaged}))


class LastVerified(TypedDict):
    """created: None if the store was never verified on this machine. damaged: files."""

    created: str | None
    damaged: int | None


def last_verified(home: Path, root: str) -> LastVerified:
    """Return what the last verify of a store found."""
    with contextlib.suppress(OSError, ValueError):
        return cast(LastVerified, read_shape(_file(home, root).read_bytes(), LastVerified))
    return {"created": None, "damaged": None}


def _file(home: Path, root: str) -> Path:
    return home / "verified" / f"{quoted_name(scrub(root))}.json"
