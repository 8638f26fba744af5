"""Copy the files of a published artifact to a folder or to an object store.

An interrupted copy is resumed by the same call. A destination that holds other files is refused, and nothing in it is
changed.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trnflow.tasks.errors import ConfigError, StoreError
from trnflow.tasks.keys.hash_cache import sha256_file
from trnflow.tasks.sources.remote_errors import credentials_fix
from trnflow.tasks.store.backend import Backend
from trnflow.tasks.store.location import open_backend

Report = Callable[[str], None]

# may differ between two publications of one model, since it shows the newest evaluation
CARD = "README.md"

# loaders read these first: a destination with one of them may be in use
LOADABLE = frozenset({"config.json", "adapter_config.json", "export.json"})

UNFINISHED = ".trnflow-unfinished"
"""The name of a file while it is being copied."""


def to_folder(folder: Path, names: list[str], to: str, report: Report) -> int:
    """Copy files to a folder and return how many were copied.

    Args:
        names: Paths of the files in `folder`; the file that makes it loadable is the last.
        to: A new or empty folder, or an unfinished copy of the same files.
        report: Called with a sentence for each file that is copied.

    Raises ConfigError if `to` is empty, a file, or holds other files, StoreError if it can't be written.
    """
    if not to:
        raise ConfigError("the destination is an empty text", "name a folder; `.` is the present one")
    place = Path(os.path.realpath(Path(to).expanduser()))  # a link stays, and its target is written
    with _destination_errors(str(place)):
        if place.exists():
            _check_folder(folder, names, place)
            return _copy(folder, names, place, report)
        # made beside its place and renamed: a new folder appears when it is complete
        aside = place.with_name(f".{place.name}.partial")
        if aside.is_symlink() or (aside.exists() and not aside.is_dir()):
            raise ConfigError(f"{aside} is in the way, where an unfinished copy is kept", "move it")
        copied = _copy(folder, names, aside, report)
        for left in set(_files_in(aside)) - set(names):
            (aside / left).unlink()  # of another model, whose copy was interrupted
        aside.rename(place)
        return copied


def _check_folder(folder: Path, names: list[str], place: Path) -> None:
    if not place.is_dir():
        raise ConfigError(f"{place} is a file", "name a new folder")
    for name in _files_in(place):
        if not (place / name).is_file():
            raise ConfigError(f"{place} holds {name}, which is no plain file", "name a new folder")
        if name not in names or (name != CARD and not _same(folder / name, place / name)):
            raise ConfigError(
                f"{place} exists and is not an empty folder: it holds {name}, which is not of this model",
                "name a new folder",
            )


def _copy(folder: Path, names: list[str], place: Path, report: Report) -> int:
    """Copy what `place` has not yet."""
    unfinished, copied = place / UNFINISHED, 0
    for name in names:
        source, target = folder / name, place / name
        if target.exists() and _same(source, target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        report(f"copying {name}")
        unfinished.unlink(missing_ok=True)
        try:
            shutil.copyfile(source, unfinished)
            unfinished.replace(os.path.realpath(target))
        finally:
            unfinished.unlink(missing_ok=True)
        copied += 1
    return copied


def _files_in(place: Path) -> list[str]:
    return sorted(
        path.relative_to(place).as_posix()
        for path in place.rglob("*")
        if (path.is_symlink() or not path.is_dir()) and path.name != UNFINISHED
    )


def _same(first: Path, second: Path) -> bool:
    return first.stat().st_size == second.stat().st_size and sha256_file(first) == sha256_file(second)


@contextmanager
def _destination_errors(to: str) -> Iterator[None]:
    """Raise errors that name the destination in place of a file system's."""
    again = "the same command goes on with what is copied"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message, fix = f"there is no room for {to}: {error.strerror}", "free some space there, or name another disk"
        else:
            message, fix = f"publishing to {to} failed: {error}", "check the folder and its permissions"
        raise StoreError(message, f"{fix}; {again}") from error


def to_object_store(folder: Path, names: list[str], to: str, report: Report) -> int:
    """Copy files to a prefix of an object store, and return how many were copied.

    names, report: As of `to_folder`. to: The prefix's URL. Raises ConfigError when the prefix holds other files, StoreError
    when the object store refuses or fails.
    """
    with _remote_errors(to):
        place = _opened(to)
        there = {entry.name for entry in place.entries("")}
        same = {name for name in names if name in there and _has(place, name, folder / name)}
        _check_prefix(to, there, same, names)
        for name in names:
            if name not in same:
                report(f"copying {name}")
                place.move_in(name, (folder / name).resolve())
    return len(names) - len(same)


def _opened(to: str) -> Backend:
    try:
        return open_backend(to)
    except ConfigError as error:
        raise ConfigError(
            f"{to} is no folder and no known kind of URL", "name a folder, s3://BUCKET/PREFIX or hf://USER/NAME"
        ) from error


def _check_prefix(to: str, there: set[str], same: set[str], names: list[str]) -> None:
    """Refuse a prefix with files that are not of this model."""
    # objects can't be replaced all at once; while the prefix does not load, one of the same name may be
    others = (there & set(names)) - same - {CARD}
    if LOADABLE & there and others:
        other = min(others)
        raise ConfigError(
            f"{to} holds another model: its {other} differs", "name a new prefix: objects can't be replaced all at once"
        )
    foreign = min(there - set(names), default=None)
    if foreign is not None:
        raise ConfigError(
            f"{to} holds {foreign}, which is not of this model",
            "name an empty prefix, or remove what an interrupted publication left there",
        )


@contextmanager
def _remote_errors(to: str) -> Iterator[None]:
    """Raise errors that name the destination in place of an object store's."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(f"there is no bucket for {to}: {error}", "make it, or name another") from error
    except StoreError as error:
        cause = error.__cause__ or error
        fix = credentials_fix(cause, to) or "check the endpoint and what the credentials may write"
        raise StoreError(
            f"publishing to {to} failed: {cause}", f"{fix}; the same command goes on with what is copied"
        ) from error


def _has(place: Backend, name: str, file: Path) -> bool:
    """Return whether an object has the bytes of `file`."""
    # fetched only if both have one size
    if place.size(name) != file.stat().st_size:
        return False
    copy = file.with_name(f".{file.name}.there")
    try:
        place.fetch(name, copy)
        return sha256_file(copy) == sha256_file(file)
    finally:
        copy.unlink(missing_ok=True)
