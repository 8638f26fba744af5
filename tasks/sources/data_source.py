"""Resolve `data.source` to a digest for each file, or to a hub dataset's commit.

The name of a hub dataset is in keys; paths, URLs and file names are not.
"""

from __future__ import annotations

import re
from pathlib import Path

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.keys.hash_cache import stamp
from trnflow.tasks.sources.data_files import FORMATS, DataFile, format_of, local_files
from trnflow.tasks.sources.paths import in_folder, local_path
from trnflow.tasks.sources.remote import resolve_hub, resolve_url
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.sources.split_files import FileSettings, SplitFile, choose_files, files_source
from trnflow.tasks.sources.zip_files import ZipOf, unzipped
from trnflow.tasks.system.redaction import scrub

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


def resolve_source(
    source: str, name: str | None, revision: str | None, settings: FileSettings, resolver: Resolver
) -> Source:
    """Resolve the dataset at `source`.

    name: a hub dataset's configuration; revision: its branch, tag or commit, None for main.

    Returns:
        A Source with the identity {"files": [{"split", "format", "digest"}]}, or {"hub", "name", "commit", "splits"}.

    Raises:
        ConfigError: There is no data or no train split.
        DataError: A file can't be read.
        MissingDependency: The package of the URL's file system is not installed.
    """
    path = local_path(source)
    if path is None:
        return resolve_url(source, settings, resolver)
    try:
        files = local_files(path, settings.folder)
    except OSError as error:  # such as a name of more than 255 bytes
        raise DataError(f"data.source: {scrub(source)[:200]}: {error.strerror}", "give another path") from error
    if files:
        files, zips = unzipped(source, files, lambda file: Path(file.path), resolver)
        return _resolve_local(path, files, zips, settings, resolver)
    if _HUB_NAME.fullmatch(source) and format_of(source) is None and not settings.local(source).exists():
        return resolve_hub(source, name, revision or "main", settings, resolver)
    raise ConfigError(
        f"data.source: there is no data at {scrub(source)}{in_folder(source, settings.folder)}",
        f"give a folder with one file per split, a glob, a file ({', '.join(FORMATS)}), a URL or a hub name",
    )


def _resolve_local(
    source: str, files: list[DataFile], zips: ZipOf, settings: FileSettings, resolver: Resolver
) -> Source:
    chosen = choose_files(source, files, settings)
    try:
        known = resolver.memo.stamped([split_file.file.path for split_file in chosen])
    except OSError as error:
        raise DataError(f"data.source: {error.filename} can't be read: {error.strerror}", "check the file") from error
    entries = [split_file.entry(digest) for split_file, (digest, _) in zip(chosen, known, strict=True)]
    locations: list[Meta] = [
        {"path": split_file.file.path, "stamp": now} for split_file, (_, now) in zip(chosen, known, strict=True)
    ]
    stamps = {path: stamp(path) for path in zips.values()}
    for location in locations if zips else ():
        path = zips[location["path"]]
        location["zip"] = {"path": str(path), "stamp": stamps[path]}
    return files_source(entries, locations, _not_read(files, chosen))


def _not_read(files: list[DataFile], chosen: list[SplitFile]) -> str:
    """Return a note that names the data files of no split, or ""."""
    used = {split_file.file.path for split_file in chosen}
    names = [file.name for file in files if file.path not in used and format_of(file.name)]
    return f"not read: {', '.join(names[:5])}" if names else ""
