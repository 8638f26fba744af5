"""The cache of downloaded and unpacked files: `<home>/cache/data/<sha256>`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Protocol

from trnflow.tasks.keys.hash_cache import Memo, sha256_file
from trnflow.tasks.system.disk import check_room

_CHUNK = 1 << 20


class Readable(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


class DownloadCache:
    """A folder of files named by their digests, each whole."""

    def __init__(self, folder: Path, memo: Memo) -> None:
        self.folder = folder
        self._memo = memo

    def path(self, digest: str) -> Path:
        """Return a digest's path, whether or not the file exists."""
        return self.folder / digest.removeprefix("sha256:")

    def has(self, digest: str) -> bool:
        """Return whether the file is there, with bytes of this digest."""
        path = self.path(digest)
        return path.exists() and self._memo.digest(path) == digest

    def add(self, stream: Readable) -> str:
        """Copy a stream to its end, and return its digest; a failure leaves nothing. Raises OSError, or
        MachineError before the disk is full."""

        def copy(temporary: Path, room: Callable[[], None]) -> None:
            with temporary.open("wb") as file:
                while chunk := stream.read(_CHUNK):
                    room()
                    file.write(chunk)

        return self.fetch(copy)

    def fetch(self, download: Callable[[Path, Callable[[], None]], None]) -> str:
        """As `add`, of what `download` writes. It gets the path, and a function to call before each part."""
        temporary = self.folder / f".{os.getpid()}.{get_ident()}"
        try:
            download(temporary, lambda: check_room(self.folder, _CHUNK))
            digest = sha256_file(str(temporary))
            temporary.replace(self.path(digest))
        finally:
            temporary.unlink(missing_ok=True)
        return digest
