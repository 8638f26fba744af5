"""Choose which files of a source belong to which split.

Without `data.splits` names decide: `val.csv`, `test/part-1.parquet`. If no name means a split, all files are train.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.sources.data_files import ALIASES, COMPRESSED, FORMATS, DataFile, format_of, local_files, split_of
from trnflow.tasks.system.redaction import scrub

SPLITS = ("train", "validation", "test")
DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Names of files that `datasets` writes beside its data."""

UNPACK = "unpack the zip, or compress the file with gzip: beside other data files a zip is not read"


class FileSettings(NamedTuple):
    """Settings for finding files.

    Attributes:
        format: `data.format`, or None to go by names.
        splits: `data.splits`: {split: name or path at the source, or a file's path elsewhere}.
        folder: What a relative source path is joined to.
        folders: {split: what its path in `splits` is joined to}.
    """

    format: str | None
    splits: dict[str, str]
    folder: Path = Path()
    folders: Mapping[str, Path] = MappingProxyType({})

    def local(self, source: str) -> Path:
        """Return `data.source` as a path."""
        return self.folder / Path(source).expanduser()


class SplitFile(NamedTuple):
    """A data file with its split and format."""

    split: str
    format: str
    file: DataFile

    def entry(self, digest: str) -> Meta:
        """Return {"split", "format", "digest", "name"} for `files_source`."""
        return {"split": self.split, "format": self.format, "digest": digest, "name": self.file.name}


def choose_files(source: str, files: list[DataFile], settings: FileSettings) -> list[SplitFile]:
    """Return the files of train, validation, test, then of other splits by name.

    Raises:
        ConfigError: A split without file, no train split, a split of several formats, or a name without known format.
    """
    named = {split: _files_of(source, files, split, theirs, settings) for split, theirs in settings.splits.items()}
    by_split = named or _by_name(source, files, settings)
    if "train" not in by_split:
        raise ConfigError(
            f"data.source: {scrub(source)} has no train split (found: {_names(files)})",
            UNPACK
            if any(file.name.lower().endswith(".zip") for file in files)
            else "give it a file whose name says train, or name its file with data.splits.train",
        )
    chosen = []
    others = sorted(by_split.keys() - {*SPLITS})
    for split in [*(split for split in SPLITS if split in by_split), *others]:
        members = by_split[split]
        formats = sorted({settings.format or format_of(file.name) or "" for file in members})
        if len(formats) > 1:
            raise ConfigError(
                f"data.source: the split {split} of {scrub(source)} has files of several formats: {', '.join(formats)}",
                f"name one with data.format, or the file with data.splits.{split}",
            )
        if formats == [""]:
            raise ConfigError(
                f"data.source: the name of {members[0].name} does not show its format",
                UNPACK if members[0].name.lower().endswith(".zip") else "set data.format",
            )
        chosen += [SplitFile(split, formats[0], file) for file in members]
    return chosen


def files_source(entries: list[Meta], locations: list[Meta], note: str) -> Source:
    """Make a Source of files' entries, and of their locations: {"path", if local "stamp", if from a zip "zip"} each."""
    identity = {"files": [{key: entry[key] for key in ("split", "format", "digest")} for entry in entries]}
    location = {"files": [{**entry, **place} for entry, place in zip(entries, locations, strict=True)]}
    return Source("data", identity, location, note)


def _by_name(source: str, candidates: list[DataFile], settings: FileSettings) -> dict[str, list[DataFile]]:
    files = [file for file in candidates if format_of(file.name)] or candidates
    files = [file for file in files if PurePosixPath(file.name).name not in DESCRIPTIONS] or files
    if len(files) == 1 and source.endswith(files[0].name):
        return {"train": files}
    if settings.format:
        files = [file for file in files if format_of(file.name) == settings.format] or files
    by_split: dict[str, list[DataFile]] = {}
    for file in files:
        if split := split_of(file.name):
            by_split.setdefault(split, []).append(file)
    return by_split or {"train": _main_files(files)}


def _main_files(files: list[DataFile]) -> list[DataFile]:
    """Return the files without .txt and .json, or all if there are no others."""
    # beside other data these are usually licences and descriptions
    for suffix in (".txt", ".json"):
        files = [file for file in files if not file.name.endswith(suffix)] or files
    return files


def _files_of(source: str, files: list[DataFile], split: str, theirs: str, settings: FileSettings) -> list[DataFile]:
    """Return the files that `data.splits.<split>` names. Raises ConfigError."""
    # by path or stem, by folder, by split in the name, by a path elsewhere; for train the only file
    for matches in (
        [file for file in files if file.name == theirs or _stem(PurePosixPath(file.name).name) == theirs],
        [file for file in files if file.name.startswith(f"{theirs.rstrip('/')}/")],
        [file for file in files if split_of(file.name) == ALIASES.get(theirs.lower(), "")],
        local_files(theirs, settings.local(source)) if "://" not in source and not Path(theirs).is_absolute() else [],
        local_files(theirs, settings.folders.get(split, Path())) if "/" in theirs else [],
        files if split == "train" and len(files) == 1 else [],
    ):
        if matches:
            return matches
    raise ConfigError(
        f"data.splits.{split}: {scrub(source)} has no split or file {theirs} (found: {_names(files)})",
        f"change data.splits.{split}, or make the split from train with data.split.{split}=0.1",
    )


def _names(files: list[DataFile]) -> str:
    return ", ".join(file.name for file in files[:8])


def _stem(name: str) -> str:
    """Return a file's name without the extensions of format and compression."""
    for suffix in reversed(PurePosixPath(name).suffixes):
        if suffix.lower() in FORMATS or suffix.lower() in COMPRESSED:
            name = name.removesuffix(suffix)
    return name
