"""Compute SHA-256 digests of files, and cache on this machine what was computed from files that have not changed since.

The cache is a sqlite file: (kind, path) -> (inode, size, mtime_ns, ctime_ns) -> value. It only saves time: if it is
missing, locked or broken, everything is computed again. It is never shared between machines.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
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
    """Return a file's inode, size, mtime and ctime as one text. The text changes when the file's bytes change, so a
    value that was cached with an equal stamp is still valid. Raises OSError if there is no file."""
    found = os.stat(path)
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def size_in(stamped: Stamp) -> int:
    """Return the size in bytes that a file had when its stamp (a result of `stamp`) was taken."""
    return int(stamped.split(":")[1])


def sha256_file(path: str | Path) -> str:
    """Return `sha256:<hex>` of a file's bytes. Always reads the file; takes about 1 MiB of memory, whatever the file's
    size. Threads that call this function hash in parallel. Raises OSError if the file can't be read."""
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
    """Return the digest of bytes in memory: `sha256:<hex>`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def sha256_files(paths: Sequence[str | Path]) -> list[str]:
    """Return the digest of each file, `sha256:<hex>`, in the order of `paths`. Reads all files, in parallel on all
    cores."""
    return in_threads(sha256_file, paths, os.cpu_count() or 1)


def in_threads(function: Callable[[Item], Value], items: Sequence[Item], threads: int) -> list[Value]:
    """Call `function` for each item, in several threads at once, and return the values in the order of the items.
    threads: the largest number of threads. Each thread gets batches of items, because passing one small file to a
    thread costs more than hashing it."""
    size = min(max(len(items) // _BATCH, 1), _BATCH)
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    with ThreadPool(threads, "in_threads") as pool:
        made = [pool.submit(partial(_each, function, batch)) for batch in batches]
        return [value for future in made for value in future.result()]


def _each(function: Callable[[Item], Value], items: Sequence[Item]) -> list[Value]:
    return [function(item) for item in items]


def _hash_rest(handle: int, digest: Any) -> None:
    """Hash the rest of an open file, using one buffer again and again. Allocating memory for each chunk, or smaller
    chunks, would be slower."""
    buffer = memoryview(bytearray(_CHUNK))
    while count := os.readv(handle, [buffer]):
        digest.update(buffer[:count])


class Memo:
    """The hash cache of one home (the folder of local state, TRNFLOW_HOME), kept in the sqlite file `<home>/memo.db`:
    values that were computed from files. A value is valid as long as its file does not change.

    A value is any JSON and has a kind, the name of what was computed, such as `digest` or `code`. `put` keeps new
    values in memory until `save` writes them to disk. path: the sqlite file, which need not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._known: dict[str, dict[str, tuple[Stamp, Json]]] = {}
        self._fresh: dict[tuple[str, str], tuple[Stamp, Json]] = {}
        self._lock = threading.Lock()

    def get(self, kind: str, path: str | Path, now: Stamp) -> Json | None:
        """Return the value of this kind that is cached for the file at `path`, if the file's stamp (inode, size and
        times) was `now` when the value was cached; else None. `path` is only compared as text; the file is not looked
        at. kind: what the value is, such as `digest` or `code`."""
        known = self._of(kind).get(str(path))
        return _decoded(known[1]) if known and known[0] == now else None

    def one(self, kind: str, path: str, now: Stamp) -> Json | None:
        """Return what `get` returns, but read no other value of this kind from disk."""
        fresh = self._fresh.get((kind, path))
        if fresh is not None or kind in self._known or not self._path.exists():
            return self.get(kind, path, now)
        with contextlib.suppress(sqlite3.Error, OSError), self._connect() as connection:
            question = "select value from known where kind = ? and path = ? and stamp = ?"
            row = connection.execute(question, (kind, path, now)).fetchone()
            return _decoded(row[0]) if row else None
        return None

    def last(self, kind: str, path: str | Path) -> Stamp | None:
        """Return the stamp (inode, size and times) that the file at `path` had when the newest value of this kind was
        cached for it; None if there is no such value. kind: what the value is, such as `digest` or `code`. The file
        itself is not looked at."""
        known = self._of(kind).get(str(path))
        return known[0] if known else None

    def put(self, kind: str, path: str | Path, now: Stamp, value: Json) -> None:
        """Cache a value, any JSON, for the file at `path`, whose stamp (inode, size and times) is `now`. The value is
        in memory only until `save` writes it to disk. kind: what the value is, such as `digest` or `code`."""
        known, entry = self._of(kind), (now, _encoded(value))
        with self._lock:
            known[str(path)] = self._fresh[kind, str(path)] = entry

    def save(self) -> None:
        """Write to the cache's sqlite file the values that were passed to `put` since the last `save`. A failure is
        ignored, because the values can be computed again."""
        if not self._fresh:
            return
        with self._lock:
            fresh, self._fresh = self._fresh, {}  # from here on, other threads put values into the new dict
        rows = [(kind, path, now, value) for (kind, path), (now, value) in fresh.items()]
        with contextlib.suppress(sqlite3.Error, OSError), self._connect() as connection:
            connection.executemany("insert or replace into known values (?, ?, ?, ?)", rows)

    def digest(self, path: str | Path) -> str:
        """Return the digest of a file, `sha256:<hex>`. The file is read only if it has changed since it was last
        hashed. Raises OSError if there is no such file."""
        return self.digests([path])[0]

    def digests(self, paths: Iterable[str | Path]) -> list[str]:
        """Return the digest of each file, `sha256:<hex>`, in the order of `paths`. New and changed files are hashed in
        parallel, and their digests are saved to disk; an unchanged file costs 5 us."""
        return [digest for digest, _ in self.stamped(paths)]

    def stamped(self, paths: Iterable[str | Path]) -> list[tuple[str, Stamp]]:
        """Return (digest, stamp) of each file, in the order of `paths`; files are hashed as by `digests`. The stamp
        (inode, size and times) is taken before the file is hashed, so that a file that changes during hashing has
        another stamp later."""
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
        """Return all values of a kind. They are read from disk at the first call; other threads wait until this is
        done."""
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
            make_home(self._path.parent)
            self._connection = sqlite3.connect(self._path, timeout=5, check_same_thread=False)
            self._connection.execute(
                "create table if not exists known (kind text, path text, stamp text, value blob, primary key (kind, path))"
            )
            self._connection.execute("pragma secure_delete = on")
            # earlier versions stored the URL itself, with its credentials
            self._connection.execute("delete from known where kind = 'etag' and path like '%://%'")
        return self._connection


def _encoded(value: Json) -> str | bytes:
    """Return a value in the form that the database stores: text unchanged, anything else as JSON in bytes. Digests, of
    which there may be many, are read without a JSON parser."""
    return value if isinstance(value, str) else json.dumps(value).encode()


def _decoded(value: str | bytes) -> Json:
    return value if isinstance(value, str) else json.loads(value)
