"""Named bytes on a filesystem: the few operations the store needs, on a local folder or over any fsspec filesystem.

A missing name is FileNotFoundError; any other failure is a StoreError, never a miss. `create` is exclusive: of several
writers of one name exactly one gets True, and no reader sees half of it. fsspec is imported for remote roots only.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from tasks.errors import ReadOnlyStore, StoreError

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
    if "://" in root.removeprefix("file://"):
        from tasks.store.remote import RemoteBackend

        return RemoteBackend(root)
    from tasks.store.local import LocalBackend

    return LocalBackend(root.removeprefix("file://"))


@contextlib.contextmanager
def trouble(root: str, name: str, doing: str) -> Iterator[None]:
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
