"""List the files at a local path, and derive a file's split (train, validation or test) and format from its name."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from trnflow.tasks.errors import DataError

ALIASES = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "eval": "validation", "evaluation": "validation", "test": "test", "testing": "test",
}  # fmt: skip
"""{word in a file name: the split that it means}."""
FORMATS = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".arrow": "arrow", ".feather": "arrow", ".txt": "txt", ".conll": "conll", ".bio": "conll", ".iob": "conll",
    ".iob2": "conll",
}  # fmt: skip
"""File extensions -> format, a value of `data.format`. `tasks/data/load/readers.py` has a reader of each."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# unpacked size as a multiple of the packed one: real texts come to 3 to 30
MOST_GROWTH = 200
max_growth: ContextVar[float] = ContextVar("max_growth", default=MOST_GROWTH)
"""The setting `data.max_growth`, for all that reads a recipe's data."""
# unpacked bytes up to which it does not count
ALWAYS_UNPACKED = 1 << 26
_WORD = re.compile(rf"(?:^|[-_. ])({'|'.join(sorted(ALIASES, key=len, reverse=True))})(?=$|[-_. \d])", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)")


class DataFile(NamedTuple):
    """A data file. name: relative to the source, with `/`; path: on this machine or in the remote file system."""

    name: str
    path: str


def local_files(source: str, folder: Path = Path()) -> list[DataFile]:
    """List the files of a path (a file, a folder with its direct subfolders) or glob, in natural order; [] if there are
    none.

    Hidden files are left out, except one that `source` names. folder: what a relative `source` is joined to.
    """
    pattern = Path(source).expanduser()
    path = folder / pattern
    if path.is_file():
        return [DataFile(path.name, str(path.resolve()))]
    if path.is_dir():
        return visible_files(_listed(path.resolve()))
    if glob.has_magic(source):
        plain = Path(*takewhile(lambda part: not glob.has_magic(part), pattern.parts))
        root = folder / plain
        matches = [path for path in root.glob(str(pattern.relative_to(plain))) if path.is_file()]
        return visible_files((path.relative_to(root).as_posix(), str(path.resolve())) for path in matches)
    return []


def _listed(folder: Path, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, path) of each file in a folder and its direct subfolders, through links. Costs 2 us a file."""
    with contextlib.suppress(PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            is_link = entry.is_symlink()
            path = os.path.realpath(entry.path) if is_link else entry.path
            if os.path.isfile(path) if is_link else entry.is_file():
                yield f"{prefix}{entry.name}", path
            elif not prefix and os.path.isdir(path):
                yield from _listed(Path(path), f"{entry.name}/")


def split_of(name: str) -> str | None:
    """Return the split that a file's name, else its folder's, means, as `val.csv`, `train/0001.parquet`; or None."""
    for part in reversed(name.split("/")):
        if match := _WORD.search(part):
            return ALIASES[match[1].lower()]
    return None


def format_of(name: str) -> str | None:
    """Return a file's format by its extension, past one of a compression (`.csv.gz` is csv); None for no data format."""
    stem, _, suffix = name.lower().rpartition(".")
    if f".{suffix}" in COMPRESSED:
        stem, _, suffix = stem.rpartition(".")
    return FORMATS.get(f".{suffix}") if stem and not stem.endswith("/") else None


def grows_too_much(packed: int, unpacked: int) -> bool:
    """Return whether a compressed file grows as only a decompression bomb does; both in bytes."""
    return unpacked > ALWAYS_UNPACKED and unpacked > max_growth.get() * packed


def check_growth(name: str, packed: int, unpacked: int, otherwise: str) -> None:
    """Raise DataError for a file that grows too much. unpacked: bytes until now; otherwise: what else than the setting helps."""
    if grows_too_much(packed, unpacked):
        raise DataError(
            f"{name} grows from {packed:,} bytes to more than {unpacked:,}",
            f"if it is what it should be, raise data.max_growth ({max_growth.get():g}), or {otherwise}",
        )


def visible_files(found: Iterable[tuple[str, str]]) -> list[DataFile]:
    """Return a DataFile for each (name, path) that is not hidden, in natural order: part-2 before part-10."""
    files = [DataFile(name, path) for name, path in found if not name.startswith(".") and "/." not in name]
    return sorted(files, key=lambda file: (_natural(file.name), file.path))


def _natural(name: str) -> list[str | int]:
    """Return a sort key: the name split into texts and numbers by turns."""
    parts: list[str | int] = [*_NUMBER.split(name)]
    parts[1::2] = map(int, parts[1::2])
    return parts
