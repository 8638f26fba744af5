"""What was collected and can still come back: `<root>/trash/<milliseconds since 1970>/<name it had>`.

Collecting and writing need no lock, for each side writes before it looks: a run writes what holds a result (its attempt, its
record), then sees that the result is there (`secure`); garbage collection moves things to trash, then sees whether anything
holds them by now. Whoever comes second brings them back, and nothing leaves the trash for good within the grace period.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tasks.artifact import Artifact, Meta
from tasks.errors import BlobLost
from tasks.store.backend import Backend, Entry
from tasks.store.names import blob_name, read_manifest, record_name

THREADS = 8
TRASH = "trash"
MANY = 1000


class Trashed(NamedTuple):
    """since: when it was moved to trash, seconds since 1970; entry: as it lies there."""

    since: float
    entry: Entry


def into_trash(name: str, now: float) -> str:
    return f"{TRASH}/{round(now * 1000)}/{name}"


def read_trash(entries: Iterable[Entry]) -> dict[str, Trashed]:
    """What collections moved there, by the name it had; of several the newest."""
    found: dict[str, Trashed] = {}
    for entry in sorted(entries):
        _, since, name = entry.name.split("/", 2) if entry.name.count("/") > 1 else ("", "", "")
        if since.isdigit():
            found[name] = max(found.get(name, Trashed(0.0, entry)), Trashed(int(since) / 1000, entry))
    return found


def bring_back(backend: Backend, names: Iterable[str]) -> list[str]:
    """Move what is in the trash to where it was, in the order given; returns the names that are not there."""
    trashed = read_trash(backend.entries(TRASH))
    lost = []
    for name in names:
        try:
            _move_back(backend, trashed[name].entry.name, name)
        except (KeyError, FileNotFoundError):
            if backend.size(name) is None:  # else another was faster
                lost.append(name)
    return lost


def _move_back(backend: Backend, trashed: str, name: str) -> None:
    if name.startswith("records/"):  # never over one that was published meanwhile
        backend.create(name, backend.read(trashed))
        backend.remove(trashed)
    else:
        backend.move(trashed, name)


def secure(backend: Backend, held: list[Meta], artifact: Artifact | None = None) -> None:
    """See `Store.secure`."""
    wanted = [blob_name(file.digest) for file in artifact.files] if artifact else []
    wanted += [blob_name(artifact.digest)] if artifact else []
    gone = absent(backend, wanted)
    # a record is collected before its blobs and comes back after them: one that is there has them
    for name in absent(backend, [record_name(item["stage"], item["key"]) for item in held]):
        gone += [*absent(backend, _below(backend, name)), name]
    lost = bring_back(backend, dict.fromkeys(gone)) if gone else []
    if lost:
        digest = f"sha256:{lost[0].rsplit('/', 1)[1]}" if lost[0].startswith("blobs/") else ""
        raise BlobLost(f"{lost[0]} was collected while this run needed it", "run again: it is made anew", digest)


def absent(backend: Backend, names: list[str]) -> list[str]:
    """Those of `names` that are not there. Many remote ones cost a listing of their folder, not a request each."""
    if backend.local is not None:
        return [name for name in names if not os.path.exists(f"{backend.local}/{name}")]
    if len(names) > MANY:
        present = {name for top in {name.split("/")[0] for name in names} for name in backend.names(top)}
        return [name for name in names if name not in present]
    with ThreadPoolExecutor(THREADS) as pool:
        sizes = list(pool.map(backend.size, names))
    return [name for name, size in zip(names, sizes, strict=True) if size is None]


def _below(backend: Backend, record: str) -> list[str]:
    """The blobs of a record that is in the trash, the manifest last."""
    trashed = read_trash(backend.entries(TRASH))
    try:
        digest = json.loads(backend.read(trashed[record].entry.name))["artifact"]
        name = blob_name(digest)
        manifest = read_manifest(backend.read(trashed[name].entry.name if name in trashed else name), digest)
    except (KeyError, FileNotFoundError):
        return []
    return [*(blob_name(file[2]) for file in manifest["files"]), name] if manifest else [name]
