"""What stages exchange: immutable, content-hashed folders with typed metadata, and sources outside the store.

An artifact's *manifest* is canonical JSON: kind, metadata and the sorted list of `[path, size, digest]` of its files.
The manifest's sha256 is the artifact's digest, so equal bytes and equal metadata are the same artifact wherever and
whenever they were made. Metadata holds nothing that varies from run to run (no seconds, hosts or paths).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tasks.errors import StoreError

SCHEMA = 1

_UNSAFE = frozenset(("", ".", ".."))

Json = Any  # str | int | float | bool | None | list[Json] | dict[str, Json]
Meta = dict[str, Json]


class File(NamedTuple):
    """path: relative, normalised, with `/`; size: bytes; digest: `sha256:<hex>`."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Artifact:
    """digest: `sha256:<hex>` of the manifest; files sorted by path."""

    digest: str
    kind: str
    meta: Meta
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Input:
    """An artifact as a stage sees it: its files, read-only, under `path`."""

    path: Path
    kind: str
    meta: Meta
    digest: str


@dataclass(frozen=True)
class Source:
    """Something from outside the store, resolved to exact bytes.

    kind: "data" or "model"; identity: canonical JSON that stands in the key (digests, a repository's commit; never a
    path or a time); location: where the stage finds it, not keyed; note: said to the user, such as "last resolution".
    """

    kind: str
    identity: Meta
    location: Meta = field(default_factory=dict)
    note: str = ""


def checked_path(path: str) -> str:
    """`path` if it is relative, normalised and stays inside its folder; else StoreError."""
    if not _UNSAFE.isdisjoint(path.split("/")) or "\x00" in path:
        raise StoreError(f"an artifact holds the path {path!r}, which is not a normalised path inside it")
    return path
