"""What stages take and return: artifacts, as inputs, and sources."""

from __future__ import annotations

import os
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

CODE = "code"
"""The kind of a source that is the user's own code: its identity is in the tables `code` and `env` of a key document."""

ASIDE = "aside/"
"""Begins the paths of files that are in no key, but in those of stages that ask for them (`Stage.aside`)."""

_NO_NAMES = frozenset(("", ".", ".."))
LONGEST_NAME, LONGEST_PATH = 255, 2048
"""Most bytes of a file's name on Linux, and of a path in an artifact: 4,096 may the whole path have."""


class File(NamedTuple):
    """A file in a manifest: normalised path with `/`, size in bytes, `sha256:<hex>`."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Artifact:
    """The output of a stage. digest: `sha256:<hex>`; kind: such as "rows"; files: sorted by path."""

    digest: str
    kind: str
    meta: Meta
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Input(Generic[Facts]):
    """An artifact as a stage reads it, such as `Input[RowsMeta]`: `path` is a read-only folder."""

    path: Path
    kind: str
    meta: Facts
    digest: str


@dataclass(frozen=True)
class Source:
    """Data or a model from outside the store, resolved to exact bytes.

    Attributes:
        kind: "data", "model" or CODE.
        identity: The part in the key: digests or a commit, never a path or a time.
        location: Where the bytes are; in no key.
        note: For the user, such as "last resolution".
    """

    kind: str
    identity: Meta
    location: Meta = field(default_factory=dict)
    note: str = ""


def checked_path(path: str) -> str:
    """Return `path`, or raise StoreError unless it is relative, normalised, inside its folder, and can be a file's."""
    name = os.fsencode(path)
    is_long = len(name) > LONGEST_NAME and (len(name) > LONGEST_PATH or max(map(len, name.split(b"/"))) > LONGEST_NAME)
    if "\x00" in path or is_long or not _NO_NAMES.isdisjoint(path.split("/")):
        raise StoreError(f"an artifact holds the path {path!r}, which is not a normalised path inside it")
    return path
