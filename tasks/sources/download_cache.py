"""The cache of downloaded and unpacked data files: `<home>/cache/data/<sha256>`, one file for each content.

A file appears when it is complete; its digest is checked before it is used again.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from threading import get_ident
from typing import IO

from trnflow.tasks.keys.hash_cache import Memo

_CHUNK = 1 << 20
"""Number of bytes that are copied at a time."""


class DownloadCache:
    """A folder of downloaded files, named by their digests."""

    def __init__(self, folder: Path, memo: Memo) -> None:
        self.folder = folder
        self._memo = memo

    def path(self, digest: str) -> Path:
        """Return a digest's path in the cache, whether or not it is there."""
        return self.folder / digest.removeprefix("sha256:")

    def has(self, digest: str) -> bool:
        """Return whether the cache has the file, with bytes of this digest."""
        path = self.path(digest)
        return path.exists() and self._memo.digest(path) == digest

    def add(self, stream: IO[bytes]) -> str:
        """Copy a stream to its end into the cache and return its digest. A failure leaves nothing. Takes 1 MiB of
        memory. Raises OSError, and the stream's exceptions."""
        temporary, digest = self.folder / f".{os.getpid()}.{get_ident()}", hashlib.sha256()
        try:
            with temporary.open("wb") as file:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    file.write(chunk)
            temporary.replace(self.folder / digest.hexdigest())
        finally:
            temporary.unlink(missing_ok=True)
        return f"sha256:{digest.hexdigest()}"
