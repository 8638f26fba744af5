"""What stages take and return: artifacts (in the store) and sources (outside it).

A manifest is canonical JSON of kind, metadata and sorted `[path, size, digest]`; its sha256 is the artifact's digest.
Metadata holds nothing that varies from run to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from trnflow.tasks.errors import StoreError

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar

SCHEMA = 1

Json = Any  # str | int | float | bool | None | list[Json] | dict[str, Json]
Meta = dict[str, Json]
if TYPE_CHECKING:
    Facts = TypeVar("Facts", bound=Mapping[str, Any], default=Any)
else:
    Facts = TypeVar("Facts")

_NO_NAMES = frozenset(("", ".", ".."))


class File(NamedTuple):
    """A file in a manifest: normalised path with `/`, bytes, `sha256:<hex>`."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Artifact:
    """Files and metadata that a stage made, in the store.

    Attributes:
        digest: `sha256:<hex>` of the manifest.
        kind: Such as "rows" or "tokens".
        files: Sorted by path.
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
class Input(Generic[Facts]):
    """An artifact as a stage receives it: a read-only folder with its files, and its metadata, such as
    `Input[RowsMeta]`."""

    path: Path
    kind: str
    meta: Facts
    digest: str


@dataclass(frozen=True)
class Source:
    """Data or a model from outside the store, resolved to exact bytes.

    Attributes:
        kind: "data" or "model".
        identity: Part of the key of each stage that reads it: digests or a commit, never a path or a time.
        location: Where the bytes are; not part of the key.
        note: For the user, such as "last resolution".
    """

    kind: str
    identity: Meta
    location: Meta = field(default_factory=dict)
    note: str = ""


def checked_path(path: str) -> str:
    """Return a path that is relative, normalised and inside its folder; else raise StoreError."""
    if "\x00" in path or not _NO_NAMES.isdisjoint(path.split("/")):
        raise StoreError(f"an artifact holds the path {path!r}, which is not a normalised path inside it")
    return path
