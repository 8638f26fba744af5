"""The backend of a store on an fsspec filesystem, such as S3 or GCS."""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, MissingDependency, StoreError
from trnflow.tasks.store.backend import Backend, CountBytes, Entry, count_nothing, storage_errors


class RemoteBackend(Backend):
    """A store at an fsspec URL, with credentials from the environment. `create` needs conditional puts."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self.local: Path | None = None
        self._fs, self._base = _filesystem(self.root)

    def read(self, name: str) -> bytes:
        with storage_errors(self.root, name, "reading"):
            return bytes(self._fs.cat_file(self._path(name)))

    def create(self, name: str, data: bytes) -> bool:
        with storage_errors(self.root, name, "creating"):
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
        with storage_errors(self.root, name, "writing"):
            self._fs.pipe_file(self._path(name), data)

    def size(self, name: str) -> int | None:
        with storage_errors(self.root, name, "looking at"):
            try:
                return int(self._fs.info(self._path(name))["size"])
            except FileNotFoundError:
                return None

    def move_in(self, name: str, path: str | Path) -> None:
        with storage_errors(self.root, name, "writing"):
            self._fs.put_file(str(path), self._path(name))

    def fetch(self, name: str, path: Path, count: CountBytes = count_nothing) -> None:
        with storage_errors(self.root, name, "reading"):
            self._fs.get_file(self._path(name), str(path), callback=_counting(count))

    def entries(self, prefix: str) -> list[Entry]:
        with storage_errors(self.root, prefix, "listing"):
            try:
                listing = self._fs.find(self._path(prefix), detail=True)
            except FileNotFoundError:
                return []
            return [
                Entry(path.removeprefix(self._base).lstrip("/"), int(info["size"]), _written(info, self.root))
                for path, info in sorted(listing.items())
                if info["type"] == "file"  # s3fs lists the prefix itself as a folder if it was empty before
            ]

    def folders(self, prefix: str) -> list[str]:
        with storage_errors(self.root, prefix, "listing"):
            try:
                listing = self._fs.ls(self._path(prefix), detail=False)
            except FileNotFoundError:
                return []
            return sorted(path.rstrip("/").rsplit("/", 1)[1] for path in listing)

    def remove_empty(self, prefix: str, *, unfinished: bool = False) -> None:
        pass  # object stores have no folders

    def move(self, name: str, to: str) -> None:
        with storage_errors(self.root, name, "moving"):
            self._fs.copy(self._path(name), self._path(to))
            self._fs.rm_file(self._path(name))

    def remove(self, prefix: str) -> None:
        with storage_errors(self.root, prefix, "removing"), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._path(prefix), recursive=True)

    def sync(self) -> None:
        pass  # object stores acknowledge durable writes

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}"


def _written(info: Meta, root: str) -> float:
    """Return an object's last write in seconds since 1970."""
    # each filesystem has its own name for it
    for name in ("LastModified", "mtime", "updated", "last_modified", "created"):
        value = info.get(name)
        if value is not None:
            with contextlib.suppress(ValueError):
                value = datetime.fromisoformat(value) if isinstance(value, str) else value
                return float(value.timestamp() if isinstance(value, datetime) else value)
    raise StoreError(f"the store {root} does not say when its objects were written", "use S3, GCS or a local folder")


def _counting(count: CountBytes) -> Any:
    """Return an fsspec callback that passes transferred bytes on to `count`."""
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
