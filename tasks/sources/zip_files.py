"""Read zip files as folders: their data files are unpacked into the download cache."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trnflow.tasks.errors import DataError
from trnflow.tasks.keys.hash_cache import stamp
from trnflow.tasks.sources.data_files import DataFile, format_of, grows_too_much, visible_files
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.system.redaction import scrub

if TYPE_CHECKING:
    import zipfile

MOST_FILES = 10_000
LISTED = 16 << 20
"""Most bytes of a zip's list of files: 300,000 names, which take 8 s and 200 MB."""

ZipOf = dict[str, Path]
"""{path of an unpacked file: its zip}"""


def unzipped(
    source: str, files: list[DataFile], local: Callable[[DataFile], Path], resolver: Resolver
) -> tuple[list[DataFile], ZipOf]:
    """Unpack a source's zips, and return (data files, their zips).

    local: returns a zip's path on this machine; may download it.

    Raises:
        DataError: A zip is broken, encrypted, without data or too large, or names a file outside itself.
    """
    zips = [file for file in files if file.name.lower().endswith(".zip")]
    if not zips or any(format_of(file.name) for file in files):
        return files, {}
    alone = len(files) == 1
    members: list[tuple[str, str]] = []
    origins: ZipOf = {}
    for file in zips:
        path = local(file)
        for name, place in _unpacked(path, file.name, resolver):
            members.append((name if alone else f"{file.name}/{name}", str(place)))
            origins[str(place)] = path
    visible = visible_files(members)
    if not visible:
        raise DataError(
            f"data.source: {zips[0].name} ({scrub(source)}) holds no data file",
            "zip files whose names tell their format, such as .csv",
        )
    return visible, origins


def _unpacked(path: Path, name: str, resolver: Resolver) -> list[tuple[str, Path]]:
    """Unpack a zip, and return (name in the zip, path in the cache) of each data file."""
    import zipfile
    import zlib

    cache, now = resolver.downloads(), stamp(path)
    # an unpacked zip is not read again while its stamp stays the same
    digests = resolver.memo.get("zip", path, now)
    if digests is None or not all(cache.has(digest) for _, digest in digests):
        try:
            _check_list(path, name)
            with zipfile.ZipFile(path) as archive:
                digests = []
                for member in _checked(archive, path, name, cache.folder):
                    with archive.open(member) as stream:
                        digests.append((member.filename, cache.add(stream)))
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
            raise DataError(
                f"data.source: {name} can't be read: {error}", "fetch it again, or unpack it yourself"
            ) from error
        resolver.memo.put("zip", path, now, digests)
        resolver.memo.save()
    return [(member, cache.path(digest)) for member, digest in digests]


def _check_list(path: Path, name: str) -> None:
    """Raise DataError for a list of files of more than LISTED bytes, which `ZipFile` would read whole."""
    import zipfile

    with path.open("rb") as file:
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    size = end[zipfile._ECD_SIZE] if end else 0  # type: ignore[attr-defined]
    if size > LISTED:
        raise DataError(
            f"data.source: {name} has a list of files of {size:,} bytes, and may have {LISTED:,}",
            "give the unpacked folder",
        )


def _checked(archive: zipfile.ZipFile, path: Path, name: str, cache: Path) -> list[zipfile.ZipInfo]:
    """Return a zip's data files. Raises DataError for a name outside, its size or method, encryption or a full disk."""
    import zipfile

    infos = [info for info in archive.infolist() if not info.is_dir()]
    for info in infos:
        if PurePosixPath(info.filename).is_absolute() or ".." in PurePosixPath(info.filename).parts:
            raise DataError(
                f"data.source: {name} names a file outside itself: {info.filename}",
                "such a zip may be an attack: use another file",
            )
    data = [info for info in infos if format_of(info.filename) and not _is_link_or_macos(info)]
    total = sum(info.file_size for info in data)
    if len(data) > MOST_FILES or grows_too_much(path.stat().st_size, total):
        raise DataError(
            f"data.source: {name} would grow from {path.stat().st_size:,} bytes to {total:,} in {len(data):,} files",
            "if it is what it should be, give the unpacked folder, or raise data.max_growth",
        )
    if any(info.flag_bits & 1 for info in data):
        raise DataError(f"data.source: {name} is encrypted", "unpack it yourself and give the folder")
    # `zipfile` unpacks a megabyte of any other kind at once: 3 kB of bzip2 are 4 GB, whatever size the list says
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in data):
        raise DataError(
            f"data.source: {name} is packed by another method than Deflate", "unpack it yourself and give the folder"
        )
    if total > shutil.disk_usage(cache).free:
        raise DataError(
            f"data.source: {name} unpacked ({total:,} bytes) does not fit on the disk of {cache}", "make room"
        )
    return data


def _is_link_or_macos(info: zipfile.ZipInfo) -> bool:
    """Return whether an entry is a symbolic link, or a file that macOS adds."""
    return stat.S_ISLNK(info.external_attr >> 16) or info.filename.startswith("__MACOSX/")
