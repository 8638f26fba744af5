"""Resolve `data.source` (path, glob, URL or hub name) to exact bytes: a digest for each file, or a hub dataset's
commit.

Paths, URLs and file names are in no key; the name of a hub dataset is. A local file whose digest is known costs one
stat.
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
    """Resolve the dataset at `source` to exact bytes.

    Args:
        name: A hub dataset's configuration, or None.
        revision: A hub dataset's branch, tag or commit; None for main.

    Returns:
        A Source with the identity {"files": [{"split", "format", "digest"}, ...]}, or of a hub dataset {"hub",
        "name", "commit", "splits"}.

    Raises:
        ConfigError: There is no data or no train split.
        DataError: A file can't be read.
        MissingDependency: The package of a URL's file system is not installed.
    """
    path = local_path(source)
    if path is None:
        return resolve_url(source, settings, resolver)
    found = local_files(path, settings.folder)
    if found:
        found, zips = unzipped(source, found, lambda file: Path(file.path), resolver)
        return _resolve_local(path, found, zips, settings, resolver)
    if _HUB_NAME.fullmatch(source) and format_of(source) is None and not settings.local(source).exists():
        return resolve_hub(source, name, revision or "main", settings, resolver)
    raise ConfigError(
        f"data.source: there is no data at {scrub(source)}{in_folder(source, settings.folder)}",
        f"give a folder with one file per split, a glob, a file ({', '.join(FORMATS)}), a URL or a hub name",
    )


def _resolve_local(
    source: str, found: list[DataFile], zips: ZipOf, settings: FileSettings, resolver: Resolver
) -> Source:
    chosen = choose_files(source, found, settings)
    try:
        known = resolver.memo.stamped([item.file.path for item in chosen])
    except OSError as error:
        raise DataError(f"data.source: {error.filename} can't be read: {error.strerror}", "check the file") from error
    entries = [item.entry(digest) for item, (digest, _) in zip(chosen, known, strict=True)]
    locations: list[Meta] = [
        {"path": item.file.path, "stamp": now} for item, (_, now) in zip(chosen, known, strict=True)
    ]
    stamps = {path: stamp(path) for path in zips.values()}
    for location in locations if zips else ():
        path = zips[location["path"]]
        location["zip"] = {"path": str(path), "stamp": stamps[path]}
    return files_source(entries, locations, _not_read(found, chosen))


def _not_read(found: list[DataFile], chosen: list[SplitFile]) -> str:
    """Return a note that names the data files of no split, or ""."""
    used = {item.file.path for item in chosen}
    names = [file.name for file in found if file.path not in used and format_of(file.name)]
    return f"not read: {', '.join(names[:5])}" if names else ""
