"""List the files below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from trnflow.tasks.errors import StoreError


def files_below(folder: Path) -> list[str]:
    """Return all files below a folder, relative, sorted. Raises StoreError for what is neither a file nor a folder."""
    # "\0" sorts before every character that a name may have
    return sorted(_files(str(folder), ""), key=lambda path: path.replace("/", "\0"))


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
