"""Digests of files, and the hash cache: sqlite, (kind, path) -> stamp -> value.

A missing, locked or broken cache costs time alone. It belongs to one machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trnflow.tasks.system.private_files import make_home
from trnflow.tasks.system.threads import ThreadPool

Json = Any
Stamp = str
Item = TypeVar("Item")
Value = TypeVar("Value")

_SMALL, _CHUNK = 1 << 17, 1 << 20
_BATCH = 64


def stamp(path: str | Path) -> Stamp:
    """Return a file's stamp. Raises OSError."""
    status = os.stat(path)
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def size_in(stamped: Stamp) -> int:
    """Return the size in bytes that a stamp holds."""
    return int(stamped.split(":")[1])


def sha256_file(path: str | Path) -> str:
    """Return `sha256:<hex>` of a file's bytes, which are always read, in 1 MiB of memory. Raises OSError."""
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
    """Return `sha256:<hex>` of bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def sha256_files(paths: Sequence[str | Path]) -> list[str]:
    """Return the digest of each file, in order; read on all cores."""
    return in_threads(sha256_file, paths, os.cpu_count() or 1)


def in_threads(function: Callable[[Item], Value], items: Sequence[Item], threads: int) -> list[Value]:
    """Return `function(item)` of each item, in order, called in up to `threads` threads."""
    # handing one small file to a thread costs more than hashing it
    size = min(max(len(items) // _BATCH, 1), _BATCH)
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPool(threads, "in_threads") as pool:
        futures: list[Future[list[Value]]] = [pool.submit(partial(list, map(function, batch))) for batch in batches]
        return [value for future in futures for value in future.result()]


def _hash_rest(handle: int, digest: Any) -> None:
    """Hash the rest of an open file."""
    # one buffer for all reads: allocating each chunk, or smaller chunks, would be slower
    buffer = memoryview(bytearray(_CHUNK))
    while count := os.readv(handle, [buffer]):
        digest.update(buffer[:count])


class Memo:
    """The hash cache of a home, `<home>/memo.db`. Values are JSON; a kind names what was computed, such as `digest`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._known: dict[str, dict[str, tuple[Stamp, Json]]] = {}
        self._fresh: dict[tuple[str, str], tuple[Stamp, Json]] = {}
        self._lock = threading.Lock()

    def get(self, kind: str, path: str | Path, now: Stamp) -> Json | None:
        """Return the value cached for a file under the stamp `now`, or None. The file is not looked at."""
        known = self._of(kind).get(str(path))
        return _decoded(known[1]) if known and known[0] == now else None

    def one(self, kind: str, path: str, now: Stamp) -> Json | None:
        """Return what is cached under the stamp `now`, or None; reads that alone."""
        fresh = self._fresh.get((kind, path))
        if fresh is not None or kind in self._known or not self._path.exists():
            return self.get(kind, path, now)
        with contextlib.suppress(sqlite3.Error, OSError), self._connect() as connection:
            question = "select value from known where kind = ? and path = ? and stamp = ?"
            row = connection.execute(question, (kind, path, now)).fetchone()
            return _decoded(row[0]) if row else None
        return None

    def last(self, kind: str, path: str | Path) -> Stamp | None:
        """Return the stamp under which a file's value was cached last, or None."""
        known = self._of(kind).get(str(path))
        return known[0] if known else None

    def put(self, kind: str, path: str | Path, now: Stamp, value: Json) -> None:
        """Cache a value for a file with the stamp `now`, in memory until `save`."""
        # digests are many, and are read without a JSON parser
        encoded = value if isinstance(value, str) else json.dumps(value).encode()
        known, entry = self._of(kind), (now, encoded)
        with self._lock:
            known[str(path)] = self._fresh[kind, str(path)] = entry

    def save(self) -> None:
        """Write to disk the values that were put since the last `save`; a failure is ignored."""
        if not self._fresh:
            return
        with self._lock:
            fresh, self._fresh = self._fresh, {}  # from here on, other threads put values into the new dict
        rows = [(kind, path, now, value) for (kind, path), (now, value) in fresh.items()]
        with contextlib.suppress(sqlite3.Error, OSError), self._connect() as connection:
            connection.executemany("insert or replace into known values (?, ?, ?, ?)", rows)

    def digest(self, path: str | Path) -> str:
        """Return the digest of a file, which is read only if it has changed. Raises OSError."""
        return self.digests([path])[0]

    def digests(self, paths: Iterable[str | Path]) -> list[str]:
        """Return the digest of each file, in order. An unchanged file costs 5 us."""
        return [digest for digest, _ in self.stamped(paths)]

    def stamped(self, paths: Iterable[str | Path]) -> list[tuple[str, Stamp]]:
        """Return (digest, stamp) of each file, in order; new and changed files are hashed in parallel."""
        files = [text if (text := os.fspath(path)).startswith("/") else os.path.abspath(text) for path in paths]
        # before hashing, so that a file that changes meanwhile has another stamp later
        stamps = [stamp(path) for path in files]
        known = self._of("digest")
        cached = [known.get(path, ("", "")) for path in files]
        unknown = {path: now for path, now, (then, _) in zip(files, stamps, cached, strict=True) if then != now}
        if not unknown:
            return [(value, then) for then, value in cached]
        for path, digest in zip(unknown, sha256_files([*unknown]), strict=True):
            self.put("digest", path, unknown[path], digest)
        self.save()
        return [(known[path][1], now) for path, now in zip(files, stamps, strict=True)]

    def _of(self, kind: str) -> dict[str, tuple[Stamp, Json]]:
        """Return all values of a kind, read from disk at the first call."""
        values = self._known.get(kind)
        if values is None:
            with self._lock:
                values = self._known.setdefault(kind, self._load(kind))
        return values

    def _load(self, kind: str) -> dict[str, tuple[Stamp, Json]]:
        if kind in self._known or not self._path.exists():
            return {}
        with contextlib.suppress(sqlite3.Error, OSError), self._connect() as connection:
            rows = connection.execute("select path, stamp, value from known where kind = ?", (kind,))
            return {path: (now, value) for path, now, value in rows}
        return {}

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            make_home(self._path.parent)
            self._connection = sqlite3.connect(self._path, timeout=5, check_same_thread=False)
            self._connection.execute(
                "create table if not exists known (kind text, path text, stamp text, value blob, primary key (kind, path))"
            )
            self._connection.execute("pragma secure_delete = on")
            # earlier versions stored the URL itself, with its credentials
            self._connection.execute("delete from known where kind = 'etag' and path like '%://%'")
        return self._connection


def _decoded(value: str | bytes) -> Json:
    return value if isinstance(value, str) else json.loads(value)
