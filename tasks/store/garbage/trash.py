"""The trash: `<root>/trash/<milliseconds since 1970>/<former name>`, from which files can be brought back.

Runs and garbage collection need no lock: each writes first and checks afterwards. A run names a result, then checks
that it is in place (`secure`); a collection moves files, then checks whether a document names them. Whichever check
comes last moves the files back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from trnflow.tasks.artifact import Artifact
from trnflow.tasks.documents import RecordName
from trnflow.tasks.errors import BlobLost
from trnflow.tasks.keys.hash_cache import in_threads
from trnflow.tasks.store.backend import Backend, Entry
from trnflow.tasks.store.layout import blob_name, checked_record, read_manifest, record_name

THREADS = 8
TRASH = "trash"
MANY = 1000


def into_trash(name: str, now: float) -> str:
    """Return the name that a file gets in the trash at the time `now` (seconds since 1970); nothing is moved."""
    return f"{TRASH}/{round(now * 1000)}/{name}"


def read_trash(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return {former name: file in the trash}, of several the one moved last. entries: a listing of the trash."""
    parts = [(entry.name.split("/", 2), entry) for entry in entries if entry.name.count("/") > 1]
    moved = sorted((int(since), name, entry) for (_, since, name), entry in parts if since.isdigit())
    return {name: entry for _, name, entry in moved}


def bring_back(backend: Backend, names: Iterable[str]) -> list[str]:
    """Move files back from the trash, in this order; return those that are lost."""
    trashed = read_trash(backend.entries(TRASH))
    lost = []
    for name in names:
        try:
            _move_back(backend, trashed[name].name, name)
        except (KeyError, FileNotFoundError):
            if backend.size(name) is None:  # otherwise another process has moved it back
                lost.append(name)
    return lost


def _move_back(backend: Backend, trashed: str, name: str) -> None:
    if name.startswith("records/"):  # never replace a record that was published in the meantime
        backend.create(name, backend.read(trashed))
        backend.remove(trashed)
    else:
        backend.move(trashed, name)


def secure(backend: Backend, held: Sequence[RecordName], artifact: Artifact | None = None) -> None:
    """Bring back missing records and an artifact's files from the trash, for a document that names them.

    held: records, whose artifacts come back with a missing record. Raises BlobLost for what is
    gone.
    """
    wanted = [blob_name(file.digest) for file in artifact.files] if artifact else []
    wanted += [blob_name(artifact.digest)] if artifact else []
    gone = absent(backend, wanted)
    # a record goes to the trash before its blobs and comes back after them, so a record in place has its blobs
    for name in absent(backend, [record_name(item["stage"], item["key"]) for item in held]):
        gone += [*absent(backend, _below(backend, name)), name]
    lost = bring_back(backend, dict.fromkeys(gone)) if gone else []
    if lost:
        digest = f"sha256:{lost[0].rsplit('/', 1)[1]}" if lost[0].startswith("blobs/") else ""
        raise BlobLost(f"{lost[0]} was collected while this run needed it", "run again: it is made anew", digest)


def absent(backend: Backend, names: list[str]) -> list[str]:
    """Return those of `names` that the store lacks. More than 1000 names of a remote store are looked up by listings."""
    if backend.local is not None:
        return [name for name in names if not os.path.exists(f"{backend.local}/{name}")]
    if len(names) > MANY:
        present = {name for top in {name.split("/")[0] for name in names} for name in backend.names(top)}
        return [name for name in names if name not in present]
    sizes = in_threads(backend.size, names, THREADS)
    return [name for name, size in zip(names, sizes, strict=True) if size is None]


def _below(backend: Backend, record: str) -> list[str]:
    """Return the blobs of a record in the trash, its manifest last."""
    trashed = read_trash(backend.entries(TRASH))
    try:
        digest = checked_record(record, backend.read(trashed[record].name))["artifact"]
        name = blob_name(digest)
        manifest = read_manifest(backend.read(trashed[name].name if name in trashed else name), digest)
    except (KeyError, ValueError, FileNotFoundError):  # ValueError: the record is damaged
        return []
    return [*(blob_name(file[2]) for file in manifest["files"]), name] if manifest else [name]
