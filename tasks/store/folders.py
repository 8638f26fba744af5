"""A folder's files as names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(folder: Path) -> list[str]:
    """Paths of all files below, relative, with `/`, sorted folder by folder; folders that are links are left out."""
    return sorted(_files(str(folder), ""), key=lambda path: path.replace("/", "\0"))  # below all that a name may hold


def _files(folder: str, prefix: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, f"{prefix}{entry.name}/")
            elif not entry.is_dir():
                yield f"{prefix}{entry.name}"
