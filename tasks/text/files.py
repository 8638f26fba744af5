"""Data files where they lie: which there are, and what their names tell of split and format."""

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
FORMATS = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".arrow": "arrow", ".feather": "arrow", ".txt": "txt",
}  # fmt: skip
COMPRESSED = (".gz", ".bz2", ".zst")
_WORD = re.compile(rf"(?:^|[-_. ])({'|'.join(sorted(ALIASES, key=len, reverse=True))})(?=$|[-_. \d])", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)")


class Candidate(NamedTuple):
    """A file that may be a split. name: relative to the source, with `/`; place: its path or URL."""

    name: str
    place: str


def local_files(source: str) -> list[Candidate]:
    """The data files of a folder (and its subfolders, one level), of a glob, or the one file; in natural order."""
    place = Path(source).expanduser()
    if place.is_file():
        return [Candidate(place.name, str(place.resolve()))]
    if place.is_dir():
        return candidates(_listed(place.resolve()))
    if glob.has_magic(source):
        root = Path(*takewhile(lambda part: not glob.has_magic(part), place.parts))
        matches = [path for path in root.glob(str(place.relative_to(root))) if path.is_file()]
        return candidates((path.relative_to(root).as_posix(), str(path.resolve())) for path in matches)
    return []


def _listed(folder: Path, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name, path) of the files of a folder and of its subfolders; links are followed. Costs 2 us a file."""
    with contextlib.suppress(PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            is_link = entry.is_symlink()
            path = os.path.realpath(entry.path) if is_link else entry.path
            if os.path.isfile(path) if is_link else entry.is_file():
                yield f"{prefix}{entry.name}", path
            elif not prefix and os.path.isdir(path):
                yield from _listed(Path(path), f"{entry.name}/")


def split_of(name: str) -> str | None:
    """The split a file's name tells, else its folder's: `val.csv`, `imdb_test.jsonl`, `train/0001.parquet`."""
    for part in reversed(name.split("/")):
        if match := _WORD.search(part):
            return ALIASES[match[1].lower()]
    return None


def format_of(name: str) -> str | None:
    """The format a file's extension tells, compressed or not; None for what is not data."""
    stem, _, suffix = name.lower().rpartition(".")
    if f".{suffix}" in COMPRESSED:
        stem, _, suffix = stem.rpartition(".")
    return FORMATS.get(f".{suffix}") if stem and not stem.endswith("/") else None


def candidates(found: Iterable[tuple[str, str]]) -> list[Candidate]:
    """Without hidden files, in natural order: part-2 before part-10."""
    files = [Candidate(name, place) for name, place in found if not name.startswith(".") and "/." not in name]
    return sorted(files, key=lambda file: (_natural(file.name), file.place))


def _natural(name: str) -> list[str | int]:
    """Texts and numbers by turns, a text first."""
    parts: list[str | int] = [*_NUMBER.split(name)]
    parts[1::2] = map(int, parts[1::2])
    return parts
