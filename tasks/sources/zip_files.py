"""Read zip files as folders of data files: each data file in a zip is unpacked into the download cache, where files are
named by their digests.

A zip is opened if the source is this zip, or if the source's folder holds no other data. The names of files in a zip
are not used as paths on disk, so such a name can't write outside the cache. A zip that was unpacked before is not read
again; only its stamp (inode, size and times), and those of the unpacked files, are looked at. Fails with DataError for
a zip that is broken, encrypted, without data files or too large unpacked, or that names a file outside itself.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trnflow.tasks.errors import DataError
from trnflow.tasks.keys.hash_cache import stamp
from trnflow.tasks.sources.data_files import DataFile, format_of, visible_files
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.system.redaction import scrub

if TYPE_CHECKING:
    import zipfile

MOST_FILES = 10_000
MOST_GROWTH = 200
"""The largest unpacked size, as a multiple of the packed one; real texts come to 3 to 30."""
ALWAYS_UNPACKED = 1 << 26
"""A zip whose unpacked size is at most this many bytes is unpacked, even if it grows by more than MOST_GROWTH."""

ZipOf = dict[str, Path]
"""{path of an unpacked file: the zip that it came from}."""


def unzipped(
    source: str, found: list[DataFile], local: Callable[[DataFile], Path], resolver: Resolver
) -> tuple[list[DataFile], ZipOf]:
    """Unpack the zips among a source's files into the download cache, and list the data files in them in place of the
    zips.

    Args:
        source: the text of `data.source`, for errors.
        found: all files of the source.
        local: returns a zip's path on this machine; may download the zip.
        resolver: has the download cache (`cache/data` in the folder of local state) and the hash cache, by which
            unchanged zips are not read again.

    Returns (files, origins). files: the unpacked data files, sorted by name in natural order (part-2 before part-10); a
    file's name is its name in the zip, after the zip's name if the source has several files. origins: {path of an
    unpacked file: path of its zip}. If there is no zip, or if there is other data beside the zips, nothing is unpacked,
    and (`found`, {}) is returned.
    """
    zips = [file for file in found if file.name.lower().endswith(".zip")]
    if not zips or any(format_of(file.name) for file in found):
        return found, {}
    alone = len(found) == 1
    members: list[tuple[str, str]] = []
    origins: ZipOf = {}
    for file in zips:
        path = local(file)
        for name, place in _unpacked(path, file.name, resolver):
            members.append((name if alone else f"{file.name}/{name}", str(place)))
            origins[str(place)] = path
    if not members:
        raise DataError(
            f"data.source: {zips[0].name} ({scrub(source)}) holds no data file",
            "zip files whose names tell their format, such as .csv",
        )
    return visible_files(members), origins


def _unpacked(path: Path, name: str, resolver: Resolver) -> list[tuple[str, Path]]:
    """Unpack a zip into the cache. Returns (name in the zip, path in the cache) of each data file."""
    import zipfile
    import zlib

    cache, now = resolver.downloads(), stamp(path)
    digests = resolver.memo.get("zip", path, now)
    if digests is None or not all(cache.has(digest) for _, digest in digests):
        try:
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


def _checked(archive: zipfile.ZipFile, path: Path, name: str, cache: Path) -> list[zipfile.ZipInfo]:
    """Return the entries of the data files in a zip. Raises DataError for a name that leads outside the zip, too large
    an unpacked size, an encrypted file or too small a disk."""
    infos = [info for info in archive.infolist() if not info.is_dir()]
    for info in infos:
        if PurePosixPath(info.filename).is_absolute() or ".." in PurePosixPath(info.filename).parts:
            raise DataError(
                f"data.source: {name} names a file outside itself: {info.filename}",
                "such a zip may be an attack: use another file",
            )
    data = [info for info in infos if format_of(info.filename) and not _is_link_or_macos(info)]
    total = sum(info.file_size for info in data)
    if len(data) > MOST_FILES or (total > ALWAYS_UNPACKED and total > MOST_GROWTH * path.stat().st_size):
        raise DataError(
            f"data.source: {name} would grow from {path.stat().st_size:,} bytes to {total:,} in {len(data):,} files",
            "if it is what it should be, unpack it yourself and give the folder",
        )
    if any(info.flag_bits & 1 for info in data):
        raise DataError(f"data.source: {name} is encrypted", "unpack it yourself and give the folder")
    if total > shutil.disk_usage(cache).free:
        raise DataError(
            f"data.source: {name} unpacked ({total:,} bytes) does not fit on the disk of {cache}", "make room"
        )
    return data


def _is_link_or_macos(info: zipfile.ZipInfo) -> bool:
    """Return whether an entry is a symbolic link, or a file that macOS adds to zips."""
    return stat.S_ISLNK(info.external_attr >> 16) or info.filename.startswith("__MACOSX/")
