"""Which files are a dataset's splits, and what their bytes are.

A folder, a glob or one file becomes a list of files, each with its split, format and sha256; paths and names never
reach the key. URLs and hub names: `tasks.text.remote`. Costs a stat per known file.
Fails with ConfigError when a split or file can't be found, DataError when it can't be read.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tasks.artifact import Meta, Source
from tasks.errors import ConfigError, DataError
from tasks.memo import stamp
from tasks.resolve import Resolver
from tasks.text.files import ALIASES, COMPRESSED, FORMATS, Candidate, format_of, local_files, split_of
from tasks.text.zips import Members, opened

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
SPLITS = ("train", "validation", "test")


class Wanted(NamedTuple):
    """What the recipe says of a source: `format` override, and `splits`, ours -> a name or path at the source."""

    format: str | None
    splits: dict[str, str]


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
        found, members = opened(source, found, lambda item: Path(item.place), resolver)
        return _resolve_local(source, found, members, wanted, resolver)
    if _HUB_NAME.fullmatch(source) and format_of(source) is None and not Path(source).expanduser().exists():
        from tasks.text.remote import resolve_hub

        return resolve_hub(source, name, revision or "main", wanted, resolver)
    raise ConfigError(
        f"data.source: there is no data at {source}",
        f"give a folder with one file per split, a glob, a file ({', '.join(FORMATS)}), a URL or a hub name",
    )


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
        [file for file in found if file.name.startswith(f"{theirs.rstrip('/')}/")],
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


def _resolve_local(source: str, found: list[Candidate], members: Members, wanted: Wanted, resolver: Resolver) -> Source:
    chosen = choose(source, found, wanted)
    try:
        seen = resolver.memo.stamped([item.file.place for item in chosen])
    except OSError as error:
        raise DataError(f"data.source: {error.filename} can't be read: {error.strerror}", "check the file") from error
    files = [pinned(item, digest) for item, (digest, _) in zip(chosen, seen, strict=True)]
    places: list[Meta] = [{"path": item.file.place, "stamp": now} for item, (_, now) in zip(chosen, seen, strict=True)]
    zips = {path: stamp(path) for path in members.values()}
    for place in places if zips else ():
        path = members[place["path"]]
        place["zip"] = {"path": str(path), "stamp": zips[path]}
    return source_of(files, places, _ignored(found, chosen))


def source_of(files: list[Meta], places: list[Meta], note: str) -> Source:
    """files: as `pinned`; places: of each, `path` and, for a user's own file, `stamp`, and those of the `zip` it came from."""
    identity = {"files": [{key: file[key] for key in ("split", "format", "digest")} for file in files]}
    location = {"files": [{**file, **place} for file, place in zip(files, places, strict=True)]}
    return Source("data", identity, location, note)


def pinned(item: Chosen, digest: str) -> Meta:
    """A chosen file with its digest, `sha256:<hex>`."""
    return {"split": item.split, "format": item.format, "digest": digest, "name": item.file.name}


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
