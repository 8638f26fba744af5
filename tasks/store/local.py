"""The backend of a store in a local folder."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from trnflow.tasks.store.backend import Backend, CountBytes, Entry, count_nothing, storage_errors

# other processes may remove a file's folder while it is empty: the write is tried again
ATTEMPTS = 16


class LocalBackend(Backend):
    """A store in a local folder."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.local: Path | None = Path(root).expanduser().absolute()
        self._folder = self.local

    def read(self, name: str) -> bytes:
        with storage_errors(self.root, name, "reading"), open(self._folder / name, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a link to a device has no end
                raise OSError("it is no regular file")
            return file.read()

    def create(self, name: str, data: bytes) -> bool:
        with storage_errors(self.root, name, "creating"):
            return self._place(name, data, _linked)

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        with storage_errors(self.root, name, "writing"):
            self._place(name, data, _renamed, durable=durable)

    def size(self, name: str) -> int | None:
        with storage_errors(self.root, name, "looking at"):
            try:
                return os.stat(f"{self._folder}/{name}").st_size
            except FileNotFoundError:
                return None

    def move_in(self, name: str, path: str | Path) -> None:
        with storage_errors(self.root, name, "writing"):
            target = f"{self._folder}/{name}"
            if os.path.islink(path):
                self._copy_in(path, target)
                return
            _finish(path)
            try:
                self._rename(path, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._copy_in(path, target)

    def _copy_in(self, path: str | Path, target: str) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        aside = Path(target).with_name(f".{uuid.uuid4().hex}")
        try:
            shutil.copyfile(path, aside)
            _finish(aside)
            aside.replace(target)
        finally:  # leave no partial file on a full disk
            aside.unlink(missing_ok=True)

    def _rename(self, path: str | Path, target: str) -> None:
        """Rename a file, creating the target's folder."""
        for attempt in range(ATTEMPTS):
            try:
                return os.replace(path, target)
            except FileNotFoundError:
                if attempt == ATTEMPTS - 1 or not os.path.exists(path):
                    raise
                os.makedirs(os.path.dirname(target), exist_ok=True)
        raise AssertionError("unreachable")

    def fetch(self, name: str, path: Path, count: CountBytes = count_nothing) -> None:
        with storage_errors(self.root, name, "reading"):
            shutil.copyfile(self._folder / name, path)
            count(os.stat(path).st_size)

    def entries(self, prefix: str) -> list[Entry]:
        with storage_errors(self.root, prefix, "listing"):
            return list(self._entries(prefix))

    def _entries(self, prefix: str) -> Iterator[Entry]:
        for inside, _, files in os.walk(self._folder / prefix, onerror=_raise_unless_absent):
            for file in files:
                path = f"{inside}/{file}"
                with contextlib.suppress(FileNotFoundError):  # removed since the listing
                    status = os.stat(path, follow_symlinks=False)
                    yield Entry(path[len(str(self._folder)) + 1 :], status.st_size, status.st_mtime)

    def folders(self, prefix: str) -> list[str]:
        with storage_errors(self.root, prefix, "listing"):
            try:
                return sorted(entry.name for entry in os.scandir(self._folder / prefix) if entry.is_dir())
            except FileNotFoundError:
                return []

    def remove_empty(self, prefix: str, *, unfinished: bool = False) -> None:
        folder = self._folder / prefix
        with contextlib.suppress(OSError):  # not empty, gone, or no permission
            for entry in os.scandir(folder):
                if unfinished and entry.name.startswith("."):
                    os.unlink(entry)
            os.rmdir(folder)

    def move(self, name: str, to: str) -> None:
        with storage_errors(self.root, name, "moving"):
            target = self._folder / to
            target.parent.mkdir(parents=True, exist_ok=True)
            (self._folder / name).replace(target)

    def remove(self, prefix: str) -> None:
        with storage_errors(self.root, prefix, "removing"):
            path = self._folder / prefix
            while path.is_dir():
                with contextlib.suppress(FileNotFoundError):  # another process removes it, too
                    shutil.rmtree(path)
            path.unlink(missing_ok=True)

    def sync(self) -> None:
        """Wait until all files are on disk."""
        with storage_errors(self.root, "", "syncing"):
            handle = os.open(self._folder, os.O_RDONLY)
            try:
                # an fsync each takes five times as long for many small files
                if ctypes.CDLL(None, use_errno=True).syncfs(handle) != 0:
                    code = ctypes.get_errno()
                    if code != errno.ENOSYS:
                        raise OSError(code, os.strerror(code))
                    os.fsync(handle)
            except AttributeError:  # no syncfs outside Linux
                os.sync()
            finally:
                os.close(handle)

    def _place(self, name: str, data: bytes, put: Callable[[Path, Path], bool], *, durable: bool = True) -> bool:
        """Write a file under a hidden name, then let `put` name it."""
        target = self._folder / name
        for attempt in range(ATTEMPTS):
            # readers never see a part of a file
            aside = target.with_name(f".{uuid.uuid4().hex}")
            try:
                os.makedirs(target.parent, exist_ok=True)
                _write(aside, data, durable=durable)
                is_named = put(aside, target)
                if is_named and durable:
                    _sync_names(target.parent)
                return is_named
            except (FileNotFoundError, FileExistsError):
                if attempt == ATTEMPTS - 1:
                    raise
            finally:
                aside.unlink(missing_ok=True)
        raise AssertionError("unreachable")


def _finish(path: str | Path) -> None:
    """Make a file read-only, and its last write now."""
    # its age in the store counts from now: gc keeps what is younger than the grace period
    os.utime(path)
    os.chmod(path, 0o444)


def _write(path: Path, data: bytes, *, durable: bool) -> None:
    with path.open("xb") as handle:
        handle.write(data)
        handle.flush()
        if durable:
            os.fsync(handle.fileno())


def _sync_names(folder: Path) -> None:
    """Let the names in a folder survive a power cut, where the filesystem syncs folders."""
    with contextlib.suppress(FileNotFoundError):  # another process has removed it meanwhile
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(handle)


def _linked(aside: Path, target: Path) -> bool:
    """Give the file its final name; return False when the name is taken."""
    try:
        os.link(aside, target)
    except FileExistsError:
        return False
    return True


def _renamed(aside: Path, target: Path) -> bool:
    aside.replace(target)
    return True


def _raise_unless_absent(error: OSError) -> None:
    """Raise a listing's error unless the folder does not exist."""
    # gc must not take an unreadable folder for an empty one
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting for a writer, as a pipe's reader does."""
    return os.open(path, flags | os.O_NONBLOCK)
