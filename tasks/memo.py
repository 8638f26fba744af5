"""What this machine has already computed about files that have not changed since.

A sqlite file of (kind, path) -> (inode, size, mtime_ns, ctime_ns) -> value. It only saves time: when it is missing,
locked or broken, everything is computed again. Never trusted across machines.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

Json = Any
Stamp = str
Item = TypeVar("Item")
Value = TypeVar("Value")

_SMALL, _CHUNK = 1 << 17, 1 << 20
_BATCH = 64


def stamp(path: str | Path) -> Stamp:
    """What changes when a file's bytes do: inode, size, mtime and ctime. OSError when there is no file."""
    found = os.stat(path)
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def sha256_file(path: str | Path) -> str:
    """`sha256:<hex>` of a file's bytes (hashlib frees the GIL). A small file costs one read, a large one no memory."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(handle, _SMALL)
        digest = hashlib.sha256(data)
        if len(data) == _SMALL:
            _hash_rest(handle, digest)
    finally:
        os.close(handle)
    return f"sha256:{digest.hexdigest()}"


def sha256_bytes(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def sha256_files(paths: Sequence[str | Path]) -> list[str]:
    """`sha256_file` of several, on all cores."""
    return in_threads(sha256_file, paths, os.cpu_count() or 1)


def in_threads(function: Callable[[Item], Value], items: Sequence[Item], threads: int) -> list[Value]:
    """`function` of each, in order. In batches, for handing a small file to a thread costs more than hashing it."""
    size = min(max(len(items) // _BATCH, 1), _BATCH)
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPoolExecutor(threads) as pool:
        return [value for batch in pool.map(lambda batch: [*map(function, batch)], batches) for value in batch]


def _hash_rest(handle: int, digest: Any) -> None:
    """Into one buffer again and again: new memory for each chunk, or smaller ones, cost rate."""
    buffer = memoryview(bytearray(_CHUNK))
    while count := os.readv(handle, [buffer]):
        digest.update(buffer[:count])


class Memo:
    """One per machine and project, at `<home>/memo.db`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._known: dict[str, dict[str, tuple[Stamp, Json]]] = {}
        self._fresh: dict[tuple[str, str], tuple[Stamp, Json]] = {}
        self._lock = threading.Lock()

    def get(self, kind: str, path: str | Path, now: Stamp) -> Json | None:
        """The value remembered for `path` if its stamp is still `now`."""
        known = self._of(kind).get(str(path))
        return _decoded(known[1]) if known and known[0] == now else None

    def put(self, kind: str, path: str | Path, now: Stamp, value: Json) -> None:
        """Remember `value`; written to disk by `save`."""
        self._of(kind)[str(path)] = self._fresh[kind, str(path)] = (now, _encoded(value))

    def save(self) -> None:
        """Write what is new. Losing a race or the disk loses only time."""
        if not self._fresh:
            return
        rows = [(kind, path, now, value) for (kind, path), (now, value) in self._fresh.items()]
        with contextlib.suppress(sqlite3.Error, OSError), self._connect() as connection:
            connection.executemany("insert or replace into known values (?, ?, ?, ?)", rows)
            self._fresh.clear()

    def digest(self, path: str | Path) -> str:
        """`sha256:<hex>` of a file, hashed only when it changed since last time."""
        return self.digests([path])[0]

    def digests(self, paths: Iterable[str | Path]) -> list[str]:
        """`digest` of several files, those that must be hashed in parallel. Costs 5 us for one that is known."""
        return [digest for digest, _ in self.stamped(paths)]

    def stamped(self, paths: Iterable[str | Path]) -> list[tuple[str, Stamp]]:
        """(digest, stamp) of several files; the stamps are older than the digests."""
        files = [text if (text := os.fspath(path)).startswith("/") else os.path.abspath(text) for path in paths]
        stamps = [stamp(path) for path in files]
        known = self._of("digest")
        found = [known.get(path, ("", "")) for path in files]
        unknown = {path: now for path, now, (then, _) in zip(files, stamps, found, strict=True) if then != now}
        if not unknown:
            return [(value, then) for then, value in found]
        for path, digest in zip(unknown, sha256_files([*unknown]), strict=True):
            self.put("digest", path, unknown[path], digest)
        self.save()
        return [(known[path][1], now) for path, now in zip(files, stamps, strict=True)]

    def _of(self, kind: str) -> dict[str, tuple[Stamp, Json]]:
        """All that is known of a kind; threads wait for the one that reads it."""
        found = self._known.get(kind)
        if found is None:
            with self._lock:
                found = self._known.setdefault(kind, self._load(kind))
        return found

    def _load(self, kind: str) -> dict[str, tuple[Stamp, Json]]:
        if kind in self._known or not self._path.exists():
            return {}
        with contextlib.suppress(sqlite3.Error, OSError), self._connect() as connection:
            rows = connection.execute("select path, stamp, value from known where kind = ?", (kind,))
            return {path: (now, value) for path, now, value in rows}
        return {}

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._path, timeout=5, check_same_thread=False)
            self._connection.execute(
                "create table if not exists known (kind text, path text, stamp text, value blob, primary key (kind, path))"
            )
        return self._connection


def _encoded(value: Json) -> str | bytes:
    """Text as itself, all else as JSON in bytes: digests, of which there may be many, need no parser."""
    return value if isinstance(value, str) else json.dumps(value).encode()


def _decoded(value: str | bytes) -> Json:
    return value if isinstance(value, str) else json.loads(value)
