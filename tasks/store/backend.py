"""The backend's interface. A name is a path relative to the root.

A missing file raises FileNotFoundError, any other failure StoreError: a failing disk is never taken for a missing file.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from trnflow.tasks.errors import ReadOnlyStore, StoreError
from trnflow.tasks.sources.remote_errors import credentials_fix

WRITES = ("creating", "writing", "moving", "removing")

CountBytes = Callable[[int], None]
"""Called by a transfer with the bytes since its last call, in any thread; an exception ends the transfer."""


def count_nothing(size: int) -> None:
    """Count no bytes."""


class Entry(NamedTuple):
    """A file in a listing. time: of its last write, in seconds since 1970."""

    name: str
    size: int
    time: float


def is_unfinished(name: str) -> bool:
    """Return whether a file is still being written, or its writer was killed."""
    return name.rsplit("/", 1)[-1].startswith(".")


class Backend(Protocol):
    """The file operations on one store. local: the folder of a local store, else None."""

    root: str
    local: Path | None

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a file whole; return False if it exists."""

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file whole, in place of an older one. durable: wait until it would survive a power cut."""

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, or None."""

    def move_in(self, name: str, path: str | Path) -> None:
        """Put a local file into the store, in place of an older one: moved and read-only in a local store (copied from
        another filesystem or a link), uploaded to a remote one."""

    def fetch(self, name: str, path: Path, count: CountBytes = count_nothing) -> None:
        """Copy a file to `path` on this machine."""

    def names(self, prefix: str) -> list[str]:
        """Return the names of all finished files below a folder, sorted."""
        return sorted(entry.name for entry in self.entries(prefix) if not is_unfinished(entry.name))

    def entries(self, prefix: str) -> list[Entry]:
        """Return all files below a folder, unfinished ones too."""

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below a folder, sorted."""

    def remove_empty(self, prefix: str, *, unfinished: bool = False) -> None:
        """Remove a folder if it is empty. unfinished: or has only unfinished files."""

    def move(self, name: str, to: str) -> None:
        """Rename a file, in place of an older one."""

    def remove(self, prefix: str) -> None:
        """Remove a file, or a folder with all below it."""

    def sync(self) -> None:
        """Wait until all that was written would survive a power cut."""


@contextlib.contextmanager
def storage_errors(root: str, name: str, doing: str) -> Iterator[None]:
    """Raise StoreError in place of any exception but FileNotFoundError. doing: such as `reading`."""
    try:
        yield
    except (FileNotFoundError, StoreError):
        raise
    # object stores' libraries raise other types than OSError
    except Exception as error:
        raise _store_error(error, root, name, doing) from error


def _store_error(error: Exception, root: str, name: str, doing: str) -> StoreError:
    denied = isinstance(error, PermissionError)
    reason = str(error) or "no reason given"
    if fix := credentials_fix(error, root):
        return StoreError(f"no credentials for the store {root} were found ({reason})", fix)
    if doing in WRITES and (denied or getattr(error, "errno", None) == errno.EROFS):
        return ReadOnlyStore(
            f"no permission for {doing} {name} in the store {root}, which can only be read: {reason}",
            "what is on record hits all the same; to run what is missing, check the folder's owner or the credentials, or "
            "choose another store: store.root=... or TRNFLOW_STORE",
        )
    if denied:
        return StoreError(
            f"no permission for {doing} {name} in the store {root}: {reason}",
            "check the folder's owner or the credentials (and the clock: S3 refuses requests that are 15 minutes off), or choose "
            "another store: store.root=... or TRNFLOW_STORE",
        )
    return StoreError(
        f"{doing} {name} in the store {root} failed: {type(error).__name__}: {reason}",
        "check the disk or the endpoint (AWS_ENDPOINT_URL), or choose another store: store.root=...",
    )
