"""Named bytes on a filesystem: the few operations the store needs, on a local folder or over any fsspec filesystem.

A missing name is FileNotFoundError; any other failure is a StoreError, never a miss. `create` is exclusive: of several
writers of one name exactly one gets True, and no reader sees half of it. fsspec is imported for remote roots only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tasks.errors import ConfigError, MissingDependency, ReadOnlyStore, StoreError

PLACINGS = 16
"""How often a file is written anew when its folder vanishes under the writer."""

WRITES = ("creating", "writing", "moving", "removing")


Count = Callable[[int], None]
"""Hears of bytes as they come, of any thread; what it raises ends the transfer."""


def uncounted(size: int) -> None:
    """For who does not ask."""


class Entry(NamedTuple):
    """size: bytes; time: of the last write, seconds since 1970 by the store's clock."""

    name: str
    size: int
    time: float


class Backend(Protocol):
    """root: as the user wrote it; local: the folder of a local root, else None."""

    root: str
    local: Path | None

    def read(self, name: str) -> bytes: ...
    def create(self, name: str, data: bytes) -> bool: ...
    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None: ...
    def size(self, name: str) -> int | None: ...
    def adopt(self, name: str, path: str | Path) -> None: ...
    def fetch(self, name: str, path: Path, count: Count = uncounted) -> None: ...
    def names(self, prefix: str) -> list[str]: ...
    def entries(self, prefix: str) -> list[Entry]: ...
    def folders(self, prefix: str) -> list[str]: ...
    def tidy(self, prefix: str, *, asides: bool = False) -> None: ...
    def move(self, name: str, to: str) -> None: ...
    def remove(self, prefix: str) -> None: ...
    def sync(self) -> None: ...


def open_backend(root: str) -> Backend:
    """A local folder (`path`, `file://path`) or any fsspec URL (`s3://bucket/prefix`, `memory://name`)."""
    if root.startswith("file://"):
        root = root.removeprefix("file://")
    return RemoteBackend(root) if "://" in root else LocalBackend(root)


@contextlib.contextmanager
def _trouble(root: str, name: str, doing: str) -> Iterator[None]:
    """Turn what filesystems raise into StoreError; FileNotFoundError passes (it is a miss).

    Object stores' libraries raise what is no OSError too (a connection that drops, an answer that is none)."""
    try:
        yield
    except (FileNotFoundError, StoreError):
        raise
    except Exception as error:
        raise _told(error, root, name, doing) from error


def _told(error: Exception, root: str, name: str, doing: str) -> StoreError:
    denied = isinstance(error, PermissionError)
    said = str(error) or "no reason given"
    if doing in WRITES and (denied or getattr(error, "errno", None) == errno.EROFS):
        return ReadOnlyStore(
            f"no permission for {doing} {name} in the store {root}, which can only be read: {said}",
            "what is on record hits all the same; to run what is missing, check the folder's owner or the credentials, or "
            "choose another store: store.root=... or TRNFLOW_STORE",
        )
    if denied:
        return StoreError(
            f"no permission for {doing} {name} in the store {root}: {said}",
            "check the folder's owner or the credentials (and the clock: S3 refuses requests that are 15 minutes off), or choose "
            "another store: store.root=... or TRNFLOW_STORE",
        )
    return StoreError(
        f"{doing} {name} in the store {root} failed: {type(error).__name__}: {said}",
        "check the disk or the endpoint (AWS_ENDPOINT_URL), or choose another store: store.root=...",
    )


class LocalBackend:
    """A folder. Files appear complete or not at all: written aside, then linked (create) or renamed (replace, adopt)."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.local: Path | None = Path(root).expanduser().absolute()
        self._folder = self.local

    def read(self, name: str) -> bytes:
        with _trouble(self.root, name, "reading"):
            return (self._folder / name).read_bytes()

    def create(self, name: str, data: bytes) -> bool:
        with _trouble(self.root, name, "creating"):
            return self._place(name, data, _linked)

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """durable: whether it must outlive a power cut."""
        with _trouble(self.root, name, "writing"):
            self._place(name, data, _renamed, durable=durable)

    def size(self, name: str) -> int | None:
        with _trouble(self.root, name, "looking at"):
            try:
                return os.stat(f"{self._folder}/{name}").st_size
            except FileNotFoundError:
                return None

    def adopt(self, name: str, path: str | Path) -> None:
        """Move a finished file to its name (a rename where the filesystem is the same), read-only."""
        with _trouble(self.root, name, "writing"):
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
        with _trouble(self.root, name, "reading"):
            shutil.copyfile(self._folder / name, path)
            count(os.stat(path).st_size)

    def names(self, prefix: str) -> list[str]:
        with _trouble(self.root, prefix, "listing"):
            found = []
            for folder, _, files in os.walk(self._folder / prefix):
                inside = os.path.relpath(folder, self._folder)
                found += [f"{inside}/{file}" for file in files if not file.startswith(".")]
            return sorted(found)

    def entries(self, prefix: str) -> list[Entry]:
        """All that lies below, what killed writers left aside too."""
        with _trouble(self.root, prefix, "listing"):
            return [
                Entry(path[len(str(self._folder)) + 1 :], size, written)
                for path, size, written in _walk(self._folder / prefix)
            ]

    def folders(self, prefix: str) -> list[str]:
        """Names of the folders directly below, empty ones too."""
        with _trouble(self.root, prefix, "listing"):
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
        with _trouble(self.root, name, "moving"):
            target = self._folder / to
            target.parent.mkdir(parents=True, exist_ok=True)
            (self._folder / name).replace(target)

    def remove(self, prefix: str) -> None:
        with _trouble(self.root, prefix, "removing"):
            path = self._folder / prefix
            while path.is_dir():
                with contextlib.suppress(FileNotFoundError):  # another removes it too
                    shutil.rmtree(path)
            path.unlink(missing_ok=True)

    def sync(self) -> None:
        """One barrier for all files written so far (an fsync each is five times slower for many small files)."""
        with _trouble(self.root, "", "syncing"):
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


class RemoteBackend:
    """Any fsspec filesystem; exclusive creation is tried when the store is opened. Credentials and endpoint come from the usual
    environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL ...)."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self.local: Path | None = None
        self._fs, self._base = _filesystem(self.root)

    def read(self, name: str) -> bytes:
        with _trouble(self.root, name, "reading"):
            return bytes(self._fs.cat_file(self._path(name)))

    def create(self, name: str, data: bytes) -> bool:
        with _trouble(self.root, name, "creating"):
            try:
                self._fs.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if "PreconditionFailed" in str(error) or "pre-conditions" in str(error):
                    return False
                raise
            return True

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        with _trouble(self.root, name, "writing"):
            self._fs.pipe_file(self._path(name), data)

    def size(self, name: str) -> int | None:
        with _trouble(self.root, name, "looking at"):
            try:
                return int(self._fs.info(self._path(name))["size"])
            except FileNotFoundError:
                return None

    def adopt(self, name: str, path: str | Path) -> None:
        with _trouble(self.root, name, "writing"):
            self._fs.put_file(str(path), self._path(name))

    def fetch(self, name: str, path: Path, count: Count = uncounted) -> None:
        with _trouble(self.root, name, "reading"):
            self._fs.get_file(self._path(name), str(path), callback=_counting(count))

    def names(self, prefix: str) -> list[str]:
        with _trouble(self.root, prefix, "listing"):
            try:
                found = self._fs.find(self._path(prefix), detail=True)
            except FileNotFoundError:
                return []
            return sorted(path.removeprefix(self._base).lstrip("/") for path, told in found.items() if _is_file(told))

    def entries(self, prefix: str) -> list[Entry]:
        with _trouble(self.root, prefix, "listing"):
            try:
                found = self._fs.find(self._path(prefix), detail=True)
            except FileNotFoundError:
                return []
            return [
                Entry(path.removeprefix(self._base).lstrip("/"), int(told["size"]), _written(told, self.root))
                for path, told in sorted(found.items())
                if _is_file(told)
            ]

    def folders(self, prefix: str) -> list[str]:
        with _trouble(self.root, prefix, "listing"):
            try:
                found = self._fs.ls(self._path(prefix), detail=False)
            except FileNotFoundError:
                return []
            return sorted(path.rstrip("/").rsplit("/", 1)[1] for path in found)

    def tidy(self, prefix: str, *, asides: bool = False) -> None:
        """Object stores have no folders."""

    def move(self, name: str, to: str) -> None:
        with _trouble(self.root, name, "moving"):
            self._fs.copy(self._path(name), self._path(to))
            self._fs.rm_file(self._path(name))

    def remove(self, prefix: str) -> None:
        with _trouble(self.root, prefix, "removing"), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path(prefix), recursive=True)

    def sync(self) -> None:
        """Object stores acknowledge durable writes."""

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}"


def _walk(folder: Path) -> Iterator[tuple[str, int, float]]:
    for inside, _, files in os.walk(folder):
        for file in files:
            path = f"{inside}/{file}"
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                found = os.stat(path, follow_symlinks=False)
                yield path, found.st_size, found.st_mtime


def _is_file(told: dict[str, Any]) -> bool:
    """s3fs finds the prefix itself, as a folder, when nothing lay below it and then something did."""
    return bool(told["type"] == "file")


def _written(told: dict[str, Any], root: str) -> float:
    """When an object was written last; filesystems name it differently."""
    for name in ("LastModified", "mtime", "updated", "last_modified", "created"):
        value = told.get(name)
        if value is not None:
            with contextlib.suppress(ValueError):
                value = datetime.fromisoformat(value) if isinstance(value, str) else value
                return float(value.timestamp() if isinstance(value, datetime) else value)
    raise StoreError(f"the store {root} does not say when its objects were written", "use S3, GCS or a local folder")


def _counting(count: Count) -> Any:
    """What fsspec tells of a transfer's bytes."""
    from fsspec.callbacks import Callback

    class Counting(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            count(inc)

    return Counting()


def _filesystem(root: str) -> tuple[Any, str]:
    import fsspec

    protocol = root.split("://", 1)[0]
    try:
        filesystem, base = fsspec.url_to_fs(root, use_listings_cache=False)
    except ImportError as error:
        raise MissingDependency(
            f"the store {root} needs a package for {protocol}://: {error}",
            f"pip install 'trnflow[{'gcs' if protocol in ('gs', 'gcs') else protocol}]'",
        ) from error
    except ValueError as error:
        raise ConfigError(f"store.root: {root} is no folder and no known kind of URL: {error}", "see README") from error
    return filesystem, base.rstrip("/")
