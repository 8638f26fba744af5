"""The values that stages take and return: artifacts (immutable, content-hashed folders with metadata, in the store) and
sources (data or a model outside the store).

An artifact's *manifest* is canonical JSON: its kind, its metadata and the sorted list of `[path, size, digest]` of its
files. The manifest's sha256 is the artifact's digest, so equal bytes with equal metadata are the same artifact, wherever
and whenever they were made. Metadata holds nothing that varies from run to run (no seconds, hosts or paths).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trnflow.tasks.errors import StoreError

SCHEMA = 1

Json = Any  # str | int | float | bool | None | list[Json] | dict[str, Json]
Meta = dict[str, Json]

_NO_NAMES = frozenset(("", ".", ".."))


class File(NamedTuple):
    """A file of an artifact, as the artifact's manifest (the JSON that lists its files and metadata) has it.

    Attributes:
        path: the path in the artifact's folder, normalised, with `/`.
        size: the number of bytes.
        digest: `sha256:<hex>` of the file's bytes.
    """

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Artifact:
    """An artifact in the store: the files and the metadata that a stage made.

    Attributes:
        digest: `sha256:<hex>` of the artifact's manifest, the JSON that lists its files and metadata.
        kind: the kind of content, which the stage sets, such as "rows" or "tokens".
        meta: the metadata that the stage returned.
        files: the artifact's files, sorted by path.
    """

    digest: str
    kind: str
    meta: Meta
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """The size of all files together, in bytes."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Input:
    """An artifact as a stage receives it. path: a read-only folder with the artifact's files; kind: the kind of
    content, such as "rows"; meta: the metadata that the stage which made the artifact returned; digest: the artifact's
    digest."""

    path: Path
    kind: str
    meta: Meta
    digest: str


@dataclass(frozen=True)
class Source:
    """Data or a model from outside the store, resolved to exact bytes.

    Attributes:
        kind: "data" or "model".
        identity: JSON that becomes part of the cache key of each stage that reads the source (digests, a repository's
            commit; never a path or a time).
        location: where the stage finds the bytes, such as paths (not part of the key).
        note: a message for the user, such as "last resolution": the hub was not asked, and its last known answer is
            used.
    """

    kind: str
    identity: Meta
    location: Meta = field(default_factory=dict)
    note: str = ""


def checked_path(path: str) -> str:
    """Return `path` if it is relative, normalised and stays inside its folder. Raises StoreError otherwise, because a
    path in a manifest must not lead outside the artifact."""
    if "\x00" in path or not _NO_NAMES.isdisjoint(path.split("/")):
        raise StoreError(f"an artifact holds the path {path!r}, which is not a normalised path inside it")
    return path
