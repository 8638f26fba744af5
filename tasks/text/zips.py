"""Zip files as folders of data files: unpacked under their digests into the cache, where names lead nowhere.

A zip stands for what is in it where it is the source itself, or where there is no other data beside it; the same file is the
same data, zipped or not. Costs a stat once its members are known. Fails with DataError for a zip that is broken,
encrypted, names a file outside itself, or would swell as no data does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tasks.errors import DataError
from tasks.memo import stamp
from tasks.resolve import Resolver
from tasks.text.files import Candidate, candidates, format_of

if TYPE_CHECKING:
    import zipfile

MOST_FILES = 10_000
MOST_GROWTH = 200
"""Unpacked size by packed; text comes to 3 to 30."""
HARMLESS = 1 << 26
"""Bytes that may be unpacked whatever the growth."""
_CHUNK = 1 << 20

Members = dict[str, Path]


def opened(
    source: str, found: list[Candidate], local: Callable[[Candidate], Path], resolver: Resolver
) -> tuple[list[Candidate], Members]:
    """`found` with the members of zips instead of zips, and from which zip each came, by its place. local: a zip's own path."""
    zips = [item for item in found if is_zip(item.name)]
    if not zips or any(format_of(item.name) for item in found):
        return found, {}
    alone = len(found) == 1
    members: list[tuple[str, str]] = []
    origins: Members = {}
    for item in zips:
        path = local(item)
        for name, place in _unpacked(path, item.name, resolver):
            members.append((name if alone else f"{item.name}/{name}", str(place)))
            origins[str(place)] = path
    if not members:
        raise DataError(
            f"data.source: {zips[0].name} ({source}) holds no data file",
            "zip files whose names tell their format, such as .csv",
        )
    return candidates(members), origins


def is_zip(name: str) -> bool:
    return name.lower().endswith(".zip")


def _unpacked(path: Path, name: str, resolver: Resolver) -> list[tuple[str, Path]]:
    """(name, place in the cache) of each data file."""
    import zipfile
    import zlib

    cache, now = resolver.cache("data"), stamp(path)
    known = resolver.memo.get("zip", path, now)
    if known is not None:
        held = [(member, cache / str(digest).removeprefix("sha256:"), digest) for member, digest in known]
        if all(place.exists() and resolver.memo.digest(place) == digest for _, place, digest in held):
            return [(member, place) for member, place, _ in held]
    try:
        with zipfile.ZipFile(path) as archive:
            infos = _checked(archive, path, name, cache)
            digests = [(info.filename, _unpack(archive, info, cache)) for info in infos]
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
        raise DataError(
            f"data.source: {name} can't be read: {error}", "fetch it again, or unpack it yourself"
        ) from error
    resolver.memo.put("zip", path, now, digests)
    resolver.memo.save()
    return [(member, cache / digest.removeprefix("sha256:")) for member, digest in digests]


def _checked(archive: zipfile.ZipFile, path: Path, name: str, cache: Path) -> list[zipfile.ZipInfo]:
    """The data files in it. DataError for what no honest zip of data holds."""
    infos = [info for info in archive.infolist() if not info.is_dir()]
    for info in infos:
        if PurePosixPath(info.filename).is_absolute() or ".." in PurePosixPath(info.filename).parts:
            raise DataError(
                f"data.source: {name} names a file outside itself: {info.filename}", "don't trust this file"
            )
    data = [info for info in infos if format_of(info.filename) and not _is_beside(info)]
    total = sum(info.file_size for info in data)
    if len(data) > MOST_FILES or (total > HARMLESS and total > MOST_GROWTH * path.stat().st_size):
        raise DataError(
            f"data.source: {name} would swell from {path.stat().st_size:,} bytes to {total:,} in {len(data):,} files",
            "if it is what it should be, unpack it yourself and give the folder",
        )
    if any(info.flag_bits & 1 for info in data):
        raise DataError(f"data.source: {name} is encrypted", "unpack it yourself and give the folder")
    if total > shutil.disk_usage(cache).free:
        raise DataError(
            f"data.source: {name} unpacked ({total:,} bytes) does not fit on the disk of {cache}", "make room"
        )
    return data


def _is_beside(info: zipfile.ZipInfo) -> bool:
    """A link, or what macOS adds."""
    return stat.S_ISLNK(info.external_attr >> 16) or info.filename.startswith("__MACOSX/")


def _unpack(archive: zipfile.ZipFile, info: zipfile.ZipInfo, cache: Path) -> str:
    aside, digest = cache / f".{os.getpid()}.zip", hashlib.sha256()
    try:
        with archive.open(info) as packed, aside.open("wb") as local:
            while chunk := packed.read(_CHUNK):
                digest.update(chunk)
                local.write(chunk)
        aside.replace(cache / digest.hexdigest())
    finally:
        aside.unlink(missing_ok=True)
    return f"sha256:{digest.hexdigest()}"
