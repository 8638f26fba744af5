"""The file operations that a store needs, as the interface `Backend`: `local.py` implements it for a folder,
`remote.py` for an fsspec filesystem such as S3.

The name of a file is its path relative to the store's root, with `/`. An operation that needs a file raises
FileNotFoundError if the file is missing. Any other failure is a StoreError, so that a failing disk or server is never
mistaken for a missing file.
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
"""A function that a transfer calls with the number of bytes since its last call, in any thread. An exception ends the
transfer."""


def count_nothing(size: int) -> None:
    """Do nothing with a number of copied bytes: the default of `count` for callers of `Backend.fetch` that do not count
    bytes."""


class Entry(NamedTuple):
    """A file of a store, as a listing shows it. name: its path relative to the store's root; size: bytes; time: when it
    was last written, in seconds since 1970, by the clock of the store's machine."""

    name: str
    size: int
    time: float


class Backend(Protocol):
    """The file operations on one store. root: the store's folder or URL, as text; local: the folder of a local store, None
    for a remote one."""

    root: str
    local: Path | None

    def read(self, name: str) -> bytes:
        """Return the bytes of the store's file `name` (a path relative to the store's root). FileNotFoundError when
        there is no such file."""

    def create(self, name: str, data: bytes) -> bool:
        """Create the file `name` of the store with these bytes and return True; return False, and change nothing, if
        there is a file of this name. Of several simultaneous writers one succeeds; readers never see an incomplete
        file."""

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file with these bytes, replacing an older file of this name. Readers never see an incomplete file.
        durable: return only when the file is on disk and would survive a power cut."""

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, or None when there is no such file."""

    def move_in(self, name: str, path: str | Path) -> None:
        """Put the file at `path` on this machine into the store under `name`, replacing an older file. A local store
        moves the file and makes it read-only (it copies a file of another filesystem or a symbolic link); a remote
        store uploads a copy."""

    def fetch(self, name: str, path: Path, count: CountBytes = count_nothing) -> None:
        """Copy a file of the store to `path` on this machine. count: called, in the course of the copy, with the number
        of bytes copied since its last call."""

    def names(self, prefix: str) -> list[str]:
        """Return the names of all files below a folder, at any depth, sorted; [] if there is no such folder. Files that
        are still being written are left out. prefix: the folder, relative to the store's root."""

    def entries(self, prefix: str) -> list[Entry]:
        """Return all files of the store below the folder `prefix`, at any depth, with size and time of the last write;
        [] if there is no such folder. Files that are being written, and unfinished files of killed writers, are
        included: see `layout.is_unfinished`."""

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below the folder `prefix` of the store, without its path, sorted; []
        if there is no such folder."""

    def remove_empty(self, prefix: str, *, unfinished: bool = False) -> None:
        """Remove the folder `prefix` of the store if it is empty. unfinished: also remove a folder that contains only
        unfinished files of killed writers, and these files."""

    def move(self, name: str, to: str) -> None:
        """Rename a file of the store from `name` to `to`. A file that has the new name already is replaced."""

    def remove(self, prefix: str) -> None:
        """Remove the file `prefix` of the store, or the folder of this name with everything below it. Do nothing if
        there is neither."""

    def sync(self) -> None:
        """Wait until everything written to the store so far is on disk and would survive a power cut."""


@contextlib.contextmanager
def storage_errors(root: str, name: str, doing: str) -> Iterator[None]:
    """Context that raises StoreError in place of an exception of a filesystem. Only FileNotFoundError is passed on
    unchanged.

    All other subclasses of Exception are replaced, since libraries of object stores raise other types than OSError, for
    example for a lost connection. root, name: the store and the file, for the message; doing: what the caller was
    doing, such as `reading`.
    """
    try:
        yield
    except (FileNotFoundError, StoreError):
        raise
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
