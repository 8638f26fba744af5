"""Resolve `data.source` to exact bytes: a path, a glob, a URL or a name on the Hugging Face hub becomes a `Source` with
a digest for each file, or for a hub dataset with its commit.

Paths, URLs and file names are not part of the stage key (the hash by which a stage's earlier result is found): if files
are moved or renamed, the key stays the same. The key does include the name of a hub dataset. URLs and hub names are
resolved by `trnflow.tasks.sources.remote`. A local file whose digest is known costs one stat. Fails with ConfigError when there
is no data or no train split, DataError when a file can't be read.
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
    """Resolve the dataset at `source` (a path, glob, URL or hub name) to exact bytes.

    Args:
        name: a hub dataset's configuration, or None.
        revision: a hub dataset's branch, tag or commit; None for its branch main.
        settings: the recipe's settings for finding the files and their formats.
        resolver: the caches of this machine, and whether the network may be asked.

    Returns a Source. Its identity is the JSON that becomes part of stage keys (the hashes by which stages' earlier
    results are found). For files it is {"files": [{"split": such as "train", "format": such as "csv", "digest": of the
    file's bytes}, ...]}; for a hub dataset {"hub": repository, "name": the dataset's configuration, "commit", "splits":
    the recipe's `data.splits`}.

    Raises ConfigError when there is no data or no train split, DataError when a file can't be read, MissingDependency
    when the package for a URL's file system is not installed.
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
    """Return a note for the user that names the data files which belong to no split; empty if there are none."""
    used = {item.file.path for item in chosen}
    names = [file.name for file in found if file.path not in used and format_of(file.name)]
    return f"not read: {', '.join(names[:5])}" if names else ""
