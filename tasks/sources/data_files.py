"""List the files at a local path, and derive a file's split (train, validation or test) and format from its name."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

ALIASES = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "eval": "validation", "evaluation": "validation", "test": "test", "testing": "test",
}  # fmt: skip
"""{word in a file name: the split that it means}."""
FORMATS = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".arrow": "arrow", ".feather": "arrow", ".txt": "txt",
}  # fmt: skip
"""File extensions -> format."""
COMPRESSED = (".gz", ".bz2", ".zst")
_WORD = re.compile(rf"(?:^|[-_. ])({'|'.join(sorted(ALIASES, key=len, reverse=True))})(?=$|[-_. \d])", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)")


class DataFile(NamedTuple):
    """A data file of a source (the place that `data.source` in a recipe names). name: its path relative to the source,
    with `/`; path: its path on this machine, or in the remote file system."""

    name: str
    path: str


def local_files(source: str, folder: Path = Path()) -> list[DataFile]:
    """List the files, of any format, that a path or glob stands for: the file at the path, the files of the folder and
    of its direct subfolders, or the files that match the glob. Sorted by name in natural order (part-2 before part-10).
    Hidden files are left out, except a file that `source` names itself. [] if there are no files.

    source: the path or glob, with or without `~`; folder: the folder to which a relative `source` is joined."""
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
    """Yield (name, path) of each file in a folder and its direct subfolders. Symbolic links are followed. Costs 2 us a
    file."""
    with contextlib.suppress(PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            is_link = entry.is_symlink()
            path = os.path.realpath(entry.path) if is_link else entry.path
            if os.path.isfile(path) if is_link else entry.is_file():
                yield f"{prefix}{entry.name}", path
            elif not prefix and os.path.isdir(path):
                yield from _listed(Path(path), f"{entry.name}/")


def split_of(name: str) -> str | None:
    """Return the split (`train`, `validation` or `test`) that the name of a file or of its folder means, as in
    `val.csv`, `imdb_test.jsonl`, `train/0001.parquet`. The file's own name is looked at first. None if the names mean
    no split."""
    for part in reversed(name.split("/")):
        if match := _WORD.search(part):
            return ALIASES[match[1].lower()]
    return None


def format_of(name: str) -> str | None:
    """Return the format of a file, `parquet`, `csv`, `tsv`, `jsonl`, `arrow` or `txt`, by its extension. An extension
    of a compression at the end is ignored (`.csv.gz` is csv). None if the extension does not belong to a data format.
    name: the file's path."""
    stem, _, suffix = name.lower().rpartition(".")
    if f".{suffix}" in COMPRESSED:
        stem, _, suffix = stem.rpartition(".")
    return FORMATS.get(f".{suffix}") if stem and not stem.endswith("/") else None


def visible_files(found: Iterable[tuple[str, str]]) -> list[DataFile]:
    """Return a DataFile for each (name, path) pair, without hidden files and files in hidden folders, sorted by name in
    natural order: part-2 before part-10."""
    files = [DataFile(name, path) for name, path in found if not name.startswith(".") and "/." not in name]
    return sorted(files, key=lambda file: (_natural(file.name), file.path))


def _natural(name: str) -> list[str | int]:
    """Return a sort key for natural order: the name split into texts and numbers by turns, beginning with a text."""
    parts: list[str | int] = [*_NUMBER.split(name)]
    parts[1::2] = map(int, parts[1::2])
    return parts
