"""Which files are a dataset's splits, and what their bytes are.

A folder, a glob or one file becomes a list of files, each with its split, format and sha256; paths and names never
reach the key. URLs and hub names: `tasks.text.remote`. Costs a stat per known file.
Fails with ConfigError when a split or file can't be found, DataError when it can't be read.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tasks.artifact import Meta, Source
from tasks.errors import ConfigError, DataError
from tasks.resolve import Resolver

SPLITS = ("train", "validation", "test")
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
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


class Wanted(NamedTuple):
    """What the recipe says of a source: `format` override, and `splits`, ours -> a name or path at the source."""

    format: str | None
    splits: dict[str, str]


class Candidate(NamedTuple):
    """A file that may be a split. name: relative to the source, with `/`; place: its path or URL."""

    name: str
    place: str


class Chosen(NamedTuple):
    split: str
    format: str
    file: Candidate


def resolve_source(source: str, name: str | None, revision: str | None, wanted: Wanted, resolver: Resolver) -> Source:
    """The dataset at `source`, pinned. identity: `files [{split, format, digest}]`, or a hub repository's commit."""
    if "://" in source:
        from tasks.text.remote import resolve_url

        return resolve_url(source, wanted, resolver)
    found = local_files(source)
    if found:
        return _resolve_local(source, found, wanted, resolver)
    if _HUB_NAME.fullmatch(source) and format_of(source) is None and not Path(source).expanduser().exists():
        from tasks.text.remote import resolve_hub

        return resolve_hub(source, name, revision or "main", wanted, resolver)
    raise ConfigError(
        f"data.source: there is no data at {source}",
        f"give a folder with one file per split, a glob, a file ({', '.join(FORMATS)}), a URL or a hub name",
    )


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


def choose(source: str, found: list[Candidate], wanted: Wanted) -> list[Chosen]:
    """Files by split: train, validation, test. Without `data.splits` names tell; files that don't are train."""
    by_split = _named(source, found, wanted) if wanted.splits else _told_by_name(source, found, wanted)
    chosen = []
    for split in sorted(by_split, key=_split_order):
        files = by_split[split]
        formats = sorted({wanted.format or format_of(file.name) or "" for file in files})
        if len(formats) > 1:
            raise ConfigError(
                f"data.source: the split {split} of {source} stands in several formats: {', '.join(formats)}",
                f"name one with data.format, or the file with data.splits.{split}",
            )
        if formats == [""]:
            raise ConfigError(
                f"data.source: the format of {files[0].name} can't be told by its name", "set data.format"
            )
        chosen += [Chosen(split, formats[0], file) for file in files]
    if "train" not in by_split:
        raise ConfigError(
            f"data.source: {source} has no train split (found: {_names(found)})",
            "name it with data.splits.train",
        )
    return chosen


def _told_by_name(source: str, found: list[Candidate], wanted: Wanted) -> dict[str, list[Candidate]]:
    files = [file for file in found if format_of(file.name)] or found
    if len(files) == 1 and source.endswith(files[0].name):
        return {"train": files}
    if wanted.format:
        files = [file for file in files if format_of(file.name) == wanted.format] or files
    by_split: dict[str, list[Candidate]] = {}
    for file in files:
        if split := split_of(file.name):
            by_split.setdefault(split, []).append(file)
    return by_split or {"train": _main_files(files)}


def _main_files(files: list[Candidate]) -> list[Candidate]:
    """Without .txt and .json when there is something else: they are licences and remarks beside the data."""
    for beside in (".txt", ".json"):
        files = [file for file in files if not file.name.endswith(beside)] or files
    return files


def _named(source: str, found: list[Candidate], wanted: Wanted) -> dict[str, list[Candidate]]:
    return {split: _named_one(source, found, split, theirs) for split, theirs in wanted.splits.items()}


def _named_one(source: str, found: list[Candidate], split: str, theirs: str) -> list[Candidate]:
    """By path, by exact stem, by what the file's name tells; or, for the train split, the only file there is."""
    inside = Path(source).expanduser() / theirs
    for matches in (
        [file for file in found if file.name == theirs or _stem(PurePosixPath(file.name).name) == theirs],
        [file for file in found if split_of(file.name) == ALIASES.get(theirs.lower(), "")],
        local_files(str(inside)) if "://" not in source and not Path(theirs).is_absolute() else [],
        local_files(theirs) if "/" in theirs else [],
        found if split == "train" and len(found) == 1 else [],
    ):
        if matches:
            return matches
    raise ConfigError(
        f"data.splits.{split}: {source} has no split or file {theirs} (found: {_names(found)})",
        f"change data.splits.{split}, or make the split from train with data.split.{split}=0.1",
    )


def _resolve_local(source: str, found: list[Candidate], wanted: Wanted, resolver: Resolver) -> Source:
    chosen = choose(source, found, wanted)
    try:
        seen = resolver.memo.stamped([item.file.place for item in chosen])
    except OSError as error:
        raise DataError(f"data.source: {error.filename} can't be read: {error.strerror}", "check the file") from error
    files = [pinned(item, digest) for item, (digest, _) in zip(chosen, seen, strict=True)]
    places = [{"path": item.file.place, "stamp": now} for item, (_, now) in zip(chosen, seen, strict=True)]
    return source_of(files, places, _ignored(found, chosen))


def source_of(files: list[Meta], places: list[Meta], note: str) -> Source:
    """files: as `pinned`; places: of each, `path` and, for a user's own file, `stamp`."""
    identity = {"files": [{key: file[key] for key in ("split", "format", "digest")} for file in files]}
    location = {"files": [{**file, **place} for file, place in zip(files, places, strict=True)]}
    return Source("data", identity, location, note)


def pinned(item: Chosen, digest: str) -> Meta:
    """A chosen file with its digest, `sha256:<hex>`."""
    return {"split": item.split, "format": item.format, "digest": digest, "name": item.file.name}


def candidates(found: Iterable[tuple[str, str]]) -> list[Candidate]:
    """Without hidden files, in natural order: part-2 before part-10."""
    files = [Candidate(name, place) for name, place in found if not name.startswith(".") and "/." not in name]
    return sorted(files, key=lambda file: (_natural(file.name), file.place))


def _natural(name: str) -> list[str | int]:
    """Texts and numbers by turns, a text first."""
    parts: list[str | int] = [*_NUMBER.split(name)]
    parts[1::2] = map(int, parts[1::2])
    return parts


def _split_order(split: str) -> tuple[int, str]:
    return (SPLITS.index(split) if split in SPLITS else len(SPLITS), split)


def _names(files: list[Candidate]) -> str:
    return ", ".join(file.name for file in files[:8])


def _stem(name: str) -> str:
    """Without the extensions of format and compression."""
    for suffix in reversed(PurePosixPath(name).suffixes):
        if suffix.lower() in FORMATS or suffix.lower() in COMPRESSED:
            name = name.removesuffix(suffix)
    return name


def _ignored(found: list[Candidate], chosen: list[Chosen]) -> str:
    used = {item.file.place for item in chosen}
    names = [file.name for file in found if file.place not in used and format_of(file.name)]
    return f"not read: {', '.join(names[:5])}" if names else ""
