"""Choose which of a data source's files belong to which split, and describe the chosen files for the stage key (the
hash by which a stage's earlier result is found).

Without `data.splits` the files' names decide: `val.csv` is validation, `test/part-1.parquet` is test. If no file name
means a split, the data files are train, except `.txt` and `.json` files beside other data, which usually are licences
and descriptions. A source that is one file is train, whatever its name. Fails with ConfigError when a split that is
asked for, or the train split, has no file.
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


class FileSettings(NamedTuple):
    """The recipe's settings for finding the files of a source.

    Attributes:
        format: `data.format`, or None to go by the files' names.
        splits: `data.splits`, {split: the split's name or path at the source, or the path of a file elsewhere}.
        folder: the folder to which a relative source path is joined.
        folders: {split: the folder to which the path of this split in `splits` is joined}.
    """

    format: str | None
    splits: dict[str, str]
    folder: Path = Path()
    folders: Mapping[str, Path] = MappingProxyType({})

    def local(self, source: str) -> Path:
        """Return `source`, the text of `data.source`, as a path on this machine: `~` is replaced by the user's home,
        and a relative path is joined to the attribute `folder`."""
        return self.folder / Path(source).expanduser()


class SplitFile(NamedTuple):
    """A data file with the split that it belongs to and its format (`parquet`, `csv`, `tsv`, `jsonl`, `arrow` or
    `txt`)."""

    split: str
    format: str
    file: DataFile

    def entry(self, digest: str) -> Meta:
        """Return the file as a JSON object, from which `files_source` makes a Source (the exact bytes of a run's data):
        {"split", "format", "digest", "name": the file's path relative to the source}. digest: `sha256:<hex>` of the
        file's bytes."""
        return {"split": self.split, "format": self.format, "digest": digest, "name": self.file.name}


def choose_files(source: str, found: list[DataFile], settings: FileSettings) -> list[SplitFile]:
    """Choose the files of each split: by `data.splits` if that is set, else by the files' names. Files that belong to
    no split are left out. Returns the files in the order train, validation, test, other splits by name; within a split,
    in the order of `found`.

    source: the text of `data.source`; found: all files of the source; settings: the recipe's settings for finding the
    files. Raises ConfigError for a split without a file, a missing train split, a split in several formats, or a file
    name without a known format."""
    by_split = _by_setting(source, found, settings) if settings.splits else _by_name(source, found, settings)
    if "train" not in by_split:
        raise ConfigError(
            f"data.source: {scrub(source)} has no train split (found: {_names(found)})",
            "name it with data.splits.train",
        )
    chosen = []
    for split in sorted(by_split, key=_split_order):
        files = by_split[split]
        formats = sorted({settings.format or format_of(file.name) or "" for file in files})
        if len(formats) > 1:
            raise ConfigError(
                f"data.source: the split {split} of {scrub(source)} has files of several formats: {', '.join(formats)}",
                f"name one with data.format, or the file with data.splits.{split}",
            )
        if formats == [""]:
            raise ConfigError(f"data.source: the name of {files[0].name} does not show its format", "set data.format")
        chosen += [SplitFile(split, formats[0], file) for file in files]
    return chosen


def files_source(entries: list[Meta], locations: list[Meta], note: str) -> Source:
    """Make a `Source` (exact bytes from outside the store) from a list of data files. The Source's identity, which
    becomes part of stage keys (the hashes by which stages' earlier results are found), has each file's split, format
    and digest. The Source's location, which is not part of keys, has their names and paths, too.

    Args:
        entries: the JSON object from `SplitFile.entry` for each file.
        locations: a JSON object for each file, in the order of `entries`: the file's `path` and, for a local file, its
            `stamp` (inode, size and times). A file from a zip also has `zip`, with the zip's `path` and `stamp`.
        note: a message for the user, such as "last resolution"; may be empty.
    """
    identity = {"files": [{key: entry[key] for key in ("split", "format", "digest")} for entry in entries]}
    location = {"files": [{**entry, **place} for entry, place in zip(entries, locations, strict=True)]}
    return Source("data", identity, location, note)


def _by_name(source: str, found: list[DataFile], settings: FileSettings) -> dict[str, list[DataFile]]:
    files = [file for file in found if format_of(file.name)] or found
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
    """Return the files without .txt and .json files, which usually are licences and descriptions of the data. If there
    are no other files, return all."""
    for suffix in (".txt", ".json"):
        files = [file for file in files if not file.name.endswith(suffix)] or files
    return files


def _by_setting(source: str, found: list[DataFile], settings: FileSettings) -> dict[str, list[DataFile]]:
    return {split: _files_of(source, found, split, theirs, settings) for split, theirs in settings.splits.items()}


def _files_of(source: str, found: list[DataFile], split: str, theirs: str, settings: FileSettings) -> list[DataFile]:
    """Return the files that `data.splits.<split>` names. Tried in this order: a file's path or stem, a folder, the
    split in a file's name, a path outside the source; for train, the source's only file."""
    for matches in (
        [file for file in found if file.name == theirs or _stem(PurePosixPath(file.name).name) == theirs],
        [file for file in found if file.name.startswith(f"{theirs.rstrip('/')}/")],
        [file for file in found if split_of(file.name) == ALIASES.get(theirs.lower(), "")],
        local_files(theirs, settings.local(source)) if "://" not in source and not Path(theirs).is_absolute() else [],
        local_files(theirs, settings.folders.get(split, Path())) if "/" in theirs else [],
        found if split == "train" and len(found) == 1 else [],
    ):
        if matches:
            return matches
    raise ConfigError(
        f"data.splits.{split}: {scrub(source)} has no split or file {theirs} (found: {_names(found)})",
        f"change data.splits.{split}, or make the split from train with data.split.{split}=0.1",
    )


def _split_order(split: str) -> tuple[int, str]:
    return (SPLITS.index(split) if split in SPLITS else len(SPLITS), split)


def _names(files: list[DataFile]) -> str:
    return ", ".join(file.name for file in files[:8])


def _stem(name: str) -> str:
    """Return a file's name without the extensions of its format and compression."""
    for suffix in reversed(PurePosixPath(name).suffixes):
        if suffix.lower() in FORMATS or suffix.lower() in COMPRESSED:
            name = name.removesuffix(suffix)
    return name
