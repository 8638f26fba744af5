"""The trash of a store: files that garbage collection removed and that can still be brought back,
`<root>/trash/<milliseconds since 1970>/<former name>`.

Runs and garbage collection need no lock between them, because each writes first and checks afterwards. A run writes the
document that names a result (an attempt, a record), then checks that the result is in place (`secure`). Garbage
collection moves files to the trash, then checks whether a document now names them. Whichever check comes last finds the
conflict and moves the files back. Nothing is deleted from the trash within the grace period.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.errors import BlobLost
from trnflow.tasks.store.backend import Backend, Entry
from trnflow.tasks.store.layout import blob_name, read_manifest, record_name

THREADS = 8
TRASH = "trash"
MANY = 1000


class Trashed(NamedTuple):
    """A file in the store's trash, where garbage collection puts files before they are deleted for good. since: when
    the file was moved to the trash, in seconds since 1970; entry: the file, under its name in the trash."""

    since: float
    entry: Entry


def into_trash(name: str, now: float) -> str:
    """Return the name that the file `name` gets in the trash; nothing is moved. now: the time of the move, in seconds
    since 1970."""
    return f"{TRASH}/{round(now * 1000)}/{name}"


def read_trash(entries: Iterable[Entry]) -> dict[str, Trashed]:
    """Find for each file in the store's trash the name that it had before. Return {name before the move: file in the
    trash}; of several files with the same former name, the one that was moved to the trash last. entries: a listing of
    the trash."""
    found: dict[str, Trashed] = {}
    for entry in sorted(entries):
        _, since, name = entry.name.split("/", 2) if entry.name.count("/") > 1 else ("", "", "")
        if since.isdigit():
            found[name] = max(found.get(name, Trashed(0.0, entry)), Trashed(int(since) / 1000, entry))
    return found


def bring_back(backend: Backend, names: Iterable[str]) -> list[str]:
    """Move files from the store's trash back to their places, in the given order. Return the names of files that are
    lost: neither in the trash nor in place. names: the files' names before they were moved to the trash. A record (the
    document that names a stage's artifact) that was written again meanwhile is not replaced."""
    trashed = read_trash(backend.entries(TRASH))
    lost = []
    for name in names:
        try:
            _move_back(backend, trashed[name].entry.name, name)
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


def secure(backend: Backend, held: list[Meta], artifact: Artifact | None = None) -> None:
    """Make sure that some records (documents that name a stage's artifact) and an artifact's files are in place: move
    missing ones back from the trash. Called for the records and files that a document names, since garbage collection
    may have moved them to the trash just before the document was written.

    held: the records, each as {"stage", "key"}; with a missing record its artifact is brought back, too; artifact: an
    artifact whose manifest (list of files) and files are needed. BlobLost when a record or file is neither in place nor
    in the trash."""
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
    """Return those of `names` (names of files, relative to the store's root) that are not in the store. In a remote
    store, more than 1000 names are looked up by listing their top folders, not by one request for each name."""
    if backend.local is not None:
        return [name for name in names if not os.path.exists(f"{backend.local}/{name}")]
    if len(names) > MANY:
        present = {name for top in {name.split("/")[0] for name in names} for name in backend.names(top)}
        return [name for name in names if name not in present]
    with ThreadPoolExecutor(THREADS) as pool:
        sizes = list(pool.map(backend.size, names))
    return [name for name, size in zip(names, sizes, strict=True) if size is None]


def _below(backend: Backend, record: str) -> list[str]:
    """Return the names of the blobs of a record that is in the trash, its manifest last."""
    trashed = read_trash(backend.entries(TRASH))
    try:
        digest = json.loads(backend.read(trashed[record].entry.name))["artifact"]
        name = blob_name(digest)
        manifest = read_manifest(backend.read(trashed[name].entry.name if name in trashed else name), digest)
    except (KeyError, FileNotFoundError):
        return []
    return [*(blob_name(file[2]) for file in manifest["files"]), name] if manifest else [name]
