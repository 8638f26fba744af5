"""A store in a local folder: files appear whole or not at all, read-only."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from tasks.store.backend import Count, Entry, trouble, uncounted

PLACINGS = 16
"""How often a file is written anew when its folder vanishes under the writer."""


class LocalBackend:
    """A folder. Files appear complete or not at all: written aside, then linked (create) or renamed (replace, adopt)."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.local: Path | None = Path(root).expanduser().absolute()
        self._folder = self.local

    def read(self, name: str) -> bytes:
        with trouble(self.root, name, "reading"):
            return (self._folder / name).read_bytes()

    def create(self, name: str, data: bytes) -> bool:
        with trouble(self.root, name, "creating"):
            return self._place(name, data, _linked)

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """durable: whether it must outlive a power cut."""
        with trouble(self.root, name, "writing"):
            self._place(name, data, _renamed, durable=durable)

    def size(self, name: str) -> int | None:
        with trouble(self.root, name, "looking at"):
            try:
                return os.stat(f"{self._folder}/{name}").st_size
            except FileNotFoundError:
                return None

    def adopt(self, name: str, path: str | Path) -> None:
        """Move a finished file to its name (a rename where the filesystem is the same), read-only."""
        with trouble(self.root, name, "writing"):
            target = f"{self._folder}/{name}"
            if os.path.islink(path):
                self._adopt_copy(path, target)
                return
            _finish(path)
            try:
                self._rename(path, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._adopt_copy(path, target)

    def _adopt_copy(self, path: str | Path, target: str) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        aside = _copied(path, f"{os.path.dirname(target)}/.{uuid.uuid4().hex}")
        _finish(aside)
        os.replace(aside, target)

    def _rename(self, path: str | Path, target: str) -> None:
        """Folders are made when they are missed, and anew when another process tidied them away meanwhile."""
        for chance in range(PLACINGS):
            try:
                return os.replace(path, target)
            except FileNotFoundError:
                if chance == PLACINGS - 1 or not os.path.exists(path):
                    raise
                os.makedirs(os.path.dirname(target), exist_ok=True)
        raise AssertionError("unreachable")

    def fetch(self, name: str, path: Path, count: Count = uncounted) -> None:
        with trouble(self.root, name, "reading"):
            shutil.copyfile(self._folder / name, path)
            count(os.stat(path).st_size)

    def names(self, prefix: str) -> list[str]:
        with trouble(self.root, prefix, "listing"):
            found = []
            for folder, _, files in os.walk(self._folder / prefix):
                inside = os.path.relpath(folder, self._folder)
                found += [f"{inside}/{file}" for file in files if not file.startswith(".")]
            return sorted(found)

    def entries(self, prefix: str) -> list[Entry]:
        """All that lies below, what killed writers left aside too."""
        with trouble(self.root, prefix, "listing"):
            return [
                Entry(path[len(str(self._folder)) + 1 :], size, written)
                for path, size, written in _walk(self._folder / prefix)
            ]

    def folders(self, prefix: str) -> list[str]:
        """Names of the folders directly below, empty ones too."""
        with trouble(self.root, prefix, "listing"):
            try:
                return sorted(entry.name for entry in os.scandir(self._folder / prefix) if entry.is_dir())
            except FileNotFoundError:
                return []

    def tidy(self, prefix: str, *, asides: bool = False) -> None:
        """Remove an empty folder; with `asides` also what killed writers left in it aside (a living one writes anew)."""
        folder = self._folder / prefix
        with contextlib.suppress(OSError):  # not empty, gone, or another's business
            for entry in os.scandir(folder):
                if asides and entry.name.startswith("."):
                    os.unlink(entry)
            os.rmdir(folder)

    def move(self, name: str, to: str) -> None:
        with trouble(self.root, name, "moving"):
            target = self._folder / to
            target.parent.mkdir(parents=True, exist_ok=True)
            (self._folder / name).replace(target)

    def remove(self, prefix: str) -> None:
        with trouble(self.root, prefix, "removing"):
            path = self._folder / prefix
            while path.is_dir():
                with contextlib.suppress(FileNotFoundError):  # another removes it too
                    shutil.rmtree(path)
            path.unlink(missing_ok=True)

    def sync(self) -> None:
        """One barrier for all files written so far (an fsync each is five times slower for many small files)."""
        with trouble(self.root, "", "syncing"):
            handle = os.open(self._folder, os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).syncfs(handle) != 0:
                    os.fsync(handle)
            except AttributeError:  # no syncfs outside Linux
                os.sync()
            finally:
                os.close(handle)

    def _place(self, name: str, data: bytes, put: Callable[[Path, Path], bool], *, durable: bool = True) -> bool:
        """Write aside, then `put` under its name; anew when another process tidied the folder away meanwhile."""
        target = self._folder / name
        for chance in range(PLACINGS):
            aside = target.with_name(f".{uuid.uuid4().hex}")
            try:
                os.makedirs(target.parent, exist_ok=True)
                _write(aside, data, durable=durable)
                return put(aside, target)
            except (FileNotFoundError, FileExistsError):
                if chance == PLACINGS - 1:
                    raise
            finally:
                aside.unlink(missing_ok=True)
        raise AssertionError("unreachable")


def _copied(path: str | Path, aside: str) -> str:
    try:
        shutil.copyfile(path, aside)
    except OSError:  # a full disk is not left fuller
        Path(aside).unlink(missing_ok=True)
        raise
    return aside


def _finish(path: str | Path) -> None:
    """Read-only; its age in the store counts from now, whatever it was elsewhere."""
    os.utime(path)
    os.chmod(path, 0o444)


def _write(path: Path, data: bytes, *, durable: bool) -> None:
    with path.open("xb") as handle:
        handle.write(data)
        handle.flush()
        if durable:
            os.fsync(handle.fileno())


def _linked(aside: Path, target: Path) -> bool:
    """Exclusive: False when the name is taken."""
    try:
        os.link(aside, target)
    except FileExistsError:
        return False
    return True


def _renamed(aside: Path, target: Path) -> bool:
    aside.replace(target)
    return True


def _walk(folder: Path) -> Iterator[tuple[str, int, float]]:
    for inside, _, files in os.walk(folder):
        for file in files:
            path = f"{inside}/{file}"
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                found = os.stat(path, follow_symlinks=False)
                yield path, found.st_size, found.st_mtime
