"""A folder's files as names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tasks.errors import StoreError


def files_below(folder: Path) -> list[str]:
    """Paths of all files below, relative, with `/`, sorted folder by folder. A link to a file counts as one: its bytes are
    taken. StoreError for what can't be kept: a link to a folder or to nothing, a socket, a device."""
    return sorted(_files(str(folder), ""), key=lambda path: path.replace("/", "\0"))  # below all that a name may hold


def _files(folder: str, prefix: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, f"{prefix}{entry.name}/")
            elif entry.is_file():
                yield f"{prefix}{entry.name}"
            else:
                raise StoreError(
                    f"the stage made {prefix}{entry.name}, which is neither a file nor a folder",
                    "write files, or copies of them",
                )
