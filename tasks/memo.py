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
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Json = Any
Stamp = str

_CHUNK = 1 << 20


def stamp(path: str | Path) -> Stamp:
    """What changes when a file's bytes do: inode, size, mtime and ctime. OSError when there is no file."""
    found = os.stat(path)
    return f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def sha256_file(path: str | Path) -> str:
    """`sha256:<hex>` of a file's bytes, read in 1 MiB chunks (hashlib frees the GIL)."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


class Memo:
    """One per machine and project, at `<home>/memo.db`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._known: dict[tuple[str, str], tuple[Stamp, Json]] = {}
        self._loaded: set[str] = set()
        self._fresh: dict[tuple[str, str], tuple[Stamp, Json]] = {}

    def get(self, kind: str, path: str | Path, now: Stamp) -> Json | None:
        """The value remembered for `path` if its stamp is still `now`."""
        self._load(kind)
        known = self._known.get((kind, str(path)))
        return known[1] if known and known[0] == now else None

    def put(self, kind: str, path: str | Path, now: Stamp, value: Json) -> None:
        """Remember `value`; written to disk by `save`."""
        self._known[kind, str(path)] = self._fresh[kind, str(path)] = (now, value)

    def save(self) -> None:
        """Write what is new. Losing a race or the disk loses only time."""
        if not self._fresh:
            return
        rows = [(kind, path, now, json.dumps(value)) for (kind, path), (now, value) in self._fresh.items()]
        with contextlib.suppress(sqlite3.Error, OSError), self._connect() as connection:
            connection.executemany("insert or replace into memo values (?, ?, ?, ?)", rows)
            self._fresh.clear()

    def digest(self, path: str | Path) -> str:
        """`sha256:<hex>` of a file, hashed only when it changed since last time."""
        return self.digests([path])[0]

    def digests(self, paths: Iterable[str | Path]) -> list[str]:
        """`digest` of several files, those that must be hashed in parallel."""
        files = [os.path.realpath(path) for path in paths]
        stamps = [stamp(path) for path in files]
        known = {path: self.get("digest", path, now) for path, now in zip(files, stamps, strict=True)}
        missing = [path for path, value in known.items() if value is None]
        if missing:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                known.update(zip(missing, pool.map(sha256_file, missing), strict=True))
            for path, now in zip(files, stamps, strict=True):
                if path in missing:
                    self.put("digest", path, now, known[path])
            self.save()
        return [str(known[path]) for path in files]

    def _load(self, kind: str) -> None:
        if kind in self._loaded or not self._path.exists():
            return
        self._loaded.add(kind)
        with contextlib.suppress(sqlite3.Error, OSError), self._connect() as connection:
            for path, now, value in connection.execute("select path, stamp, value from memo where kind = ?", (kind,)):
                self._known.setdefault((kind, path), (now, json.loads(value)))

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._path, timeout=5, check_same_thread=False)
            self._connection.execute(
                "create table if not exists memo (kind text, path text, stamp text, value text, primary key (kind, path))"
            )
        return self._connection
