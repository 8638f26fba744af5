"""The cache of downloaded and unpacked data files: `<home>/cache/data/<sha256 in hex>`, one file for each content. The
home is the folder of local state, TRNFLOW_HOME or `.trnflow`.

A file appears in the cache only after it was written completely. Before a cached file is used again, its digest is
checked; the hash cache saves reading a file that has not changed.
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
    """A folder of downloaded files, named by the digests of their bytes.

    folder: an existing folder; memo: the hash cache, which knows the digests of unchanged files."""

    def __init__(self, folder: Path, memo: Memo) -> None:
        self.folder = folder
        self._memo = memo

    def path(self, digest: str) -> Path:
        """Return the path that a file with this digest (`sha256:<hex>`) has in the cache, whether or not the cache has
        the file."""
        return self.folder / digest.removeprefix("sha256:")

    def has(self, digest: str) -> bool:
        """Return whether the cache has the file with this digest and the file's bytes still have the digest."""
        path = self.path(digest)
        return path.exists() and self._memo.digest(path) == digest

    def add(self, stream: IO[bytes]) -> str:
        """Copy a stream to its end into the cache, as the file that is named by the digest of the stream's bytes, and
        return this digest (`sha256:<hex>`). If copying fails, nothing is left in the cache. Memory: 1 MiB. Raises
        OSError, and any exception of the stream."""
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
