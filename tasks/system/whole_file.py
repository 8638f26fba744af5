"""Write a file whole or not at all, and replace nothing but a plain file."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write_whole(file: Path, text: str) -> None:
    """Replace a file's content as `written` does, creating its folder: readers find the old or the new content. Raises
    OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with written(file) as content:
        content.write(text.encode())


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """Yield a file: when the context ends, `path` holds what was written to it; an error leaves what was there.

    A link stays, and its target is written. What exists and is no plain file, such as a device or a pipe, is written
    through, byte by byte. Raises OSError.
    """
    if not is_replaced(path):
        # appended, if it is our own stdout that the shell has sent to a file
        flags = os.O_WRONLY | os.O_APPEND * path.is_file()
        with _closed(open(path, "wb", opener=lambda name, _: os.open(name, flags))) as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    aside = target.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with _closed(aside.open("xb")) as file:
            _take_over(target, file)
            yield file
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def is_replaced(path: Path) -> bool:
    """Return whether `written` replaces the file at `path`, or makes it. Raises OSError for a folder or a circle of links."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return True
    if stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(f"{path} is a folder")
    return stat.S_ISREG(there.st_mode) and not _is_open_file(path) and not is_stdout(path)


def is_stdout(path: Path) -> bool:
    """Return whether what is written to `path` goes where this process's standard output goes."""
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(1))
    return False


@contextmanager
def _closed(file: BinaryIO) -> Iterator[BinaryIO]:
    """Close a file at the end; after an error without a second one, since closing writes what is left."""
    try:
        yield file
    except BaseException:
        with suppress(OSError):
            file.close()
        raise
    file.close()


def _is_open_file(path: Path) -> bool:
    """Return whether a path is a process's open file, as /dev/stdout and /dev/fd/3 are, however many links lead there."""
    while True:
        if Path(os.path.realpath(path.parent)).match("/proc/*/fd"):
            return True
        if not path.is_symlink():
            return False
        path = path.parent / os.readlink(path)


def _take_over(target: Path, file: BinaryIO) -> None:
    """Give a new file the mode and, where allowed, the owner of the one that it will replace."""
    with suppress(FileNotFoundError):
        there = target.stat()
        os.fchmod(file.fileno(), stat.S_IMODE(there.st_mode))
        with suppress(PermissionError):
            os.fchown(file.fileno(), there.st_uid, there.st_gid)
