"""Resolve datasets at URLs and on the hub. Offline the last answer is used."""

from __future__ import annotations

import glob
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from trnflow.tasks.artifact import Json, Meta, Source
from trnflow.tasks.errors import DataError, MissingDependency, TrnflowError
from trnflow.tasks.sources.data_files import DataFile, check_growth, visible_files
from trnflow.tasks.sources.download_cache import DownloadCache
from trnflow.tasks.sources.hub_errors import described, hub_errors
from trnflow.tasks.sources.remote_errors import explain_error
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.sources.split_files import FileSettings, choose_files, files_source
from trnflow.tasks.sources.zip_files import unzipped
from trnflow.tasks.system.redaction import scrub

_NETWORK = "check the URL, the network and the credentials in the environment"


def resolve_url(source: str, settings: FileSettings, resolver: Resolver) -> Source:
    """Download a URL's files, and return a Source with split, format and digest of each.

    Raises DataError, MissingDependency for a file system's package, ConfigError without train split or offline.
    """
    asked = f" {settings.format} {sorted(settings.splits.items())}" if settings.format or settings.splits else ""
    # downloaded at once, since the key needs digests
    answer, note = resolver.ask_or_recall(f"url/{source}{asked}", lambda: _ask_url(source, settings, resolver))
    cache = resolver.downloads()
    return files_source(answer["files"], [{"path": str(cache.path(file["digest"]))} for file in answer["files"]], note)


def _ask_url(source: str, settings: FileSettings, resolver: Resolver) -> Json:
    filesystem, files, known = _remote_files(source)
    cache = resolver.downloads()

    def fetch(file: DataFile) -> str:
        try:
            info = known.get(file.path) or filesystem.info(file.path)
            return _download(filesystem, file.path, info, source, resolver)
        except TrnflowError:
            raise
        except Exception as error:  # each library raises its own errors, and not all are OSErrors
            raise _unreadable(source, error) from error

    files, zips = unzipped(source, files, lambda file: cache.path(fetch(file)), resolver)
    chosen = choose_files(source, files, settings)
    picked = [split_file.file for split_file in chosen]
    digests = [resolver.memo.digest(file.path) if file.path in zips else fetch(file) for file in picked]
    return {"files": [split_file.entry(digest) for split_file, digest in zip(chosen, digests, strict=True)]}


def _remote_files(source: str) -> tuple[Any, list[DataFile], dict[str, Meta]]:
    """Return (file system, files at the URL, {path: what the file system said of the file})."""
    from fsspec.core import url_to_fs

    try:
        filesystem, path = url_to_fs(source)
        if source.startswith(("http://", "https://")):
            # http has no folders: the URL names one file
            return filesystem, [DataFile(PurePosixPath(urlsplit(path).path).name, path)], {}
        known = _known_files(filesystem, path)
    except FileNotFoundError:
        known = {}
    except ImportError as error:
        raise MissingDependency(
            f"data.source: reading {source.split('://')[0]}:// needs a package: {scrub(' '.join(str(error).split()))}",
            "pip install 'trnflow[s3]' or 'trnflow[gcs]'",
        ) from error
    except Exception as error:
        raise _unreadable(source, error) from error
    if not known:
        raise DataError(f"data.source: there is nothing at {scrub(source)}", _NETWORK)
    names = ((file.removeprefix(path).strip("/") or PurePosixPath(path).name, file) for file in known)
    return filesystem, visible_files(names), known


def _known_files(filesystem: Any, path: str) -> dict[str, Meta]:
    """Return {path: what the file system says} of the files at a path: a glob, a file or a folder."""
    if glob.has_magic(path):
        return dict(filesystem.glob(path, detail=True))
    info = filesystem.info(path)  # before any listing: of an object, one request
    return {path: info} if info["type"] == "file" else dict(filesystem.find(path, maxdepth=2, detail=True))


def _download(filesystem: Any, path: str, info: Meta, source: str, resolver: Resolver) -> str:
    """Download a file, unless its strong ETag is unchanged, and return its digest. info: of the file system."""
    cache = resolver.downloads()
    tag = _etag(info)
    asked = resolver.lookup_name(f"{source} {path}")
    known = resolver.memo.get("etag", asked, tag) if tag else None
    if known is not None and cache.has(known):
        return str(known)
    if path.startswith(("http://", "https://")):
        digest = _download_http(filesystem, path, cache)
    else:
        digest = cache.fetch(lambda file, room: _download_whole(filesystem, path, file, room))
    if tag:
        resolver.memo.put("etag", asked, tag, digest)
        resolver.memo.save()
    return digest


def _download_whole(filesystem: Any, path: str, file: Path, room: Callable[[], None]) -> None:
    """Download a file by one request. room: called as bytes come."""
    from fsspec.callbacks import Callback

    # not by ranges, as below: a filesystem that would ask for several at a time has `max_concurrency`
    one = {"max_concurrency": 1} if hasattr(filesystem, "max_concurrency") else {}
    filesystem.get_file(path, str(file), callback=Callback(hooks={"room": lambda *_, **__: room()}), **one)


def _download_http(filesystem: Any, url: str, cache: DownloadCache) -> str:
    """Download a file by one request, and return its digest. Raises DataError if the body grows too much in unpacking."""
    import aiohttp

    # not by ranges, as fsspec does by default: they end where the answer to HEAD says, so that its lie cuts the file
    # without an error, and of a file that changes meanwhile they join two versions
    asked = {
        "headers": {"Accept-Encoding": "identity"},
        "timeout": aiohttp.ClientTimeout(sock_connect=60, sock_read=60),
    }
    # any size keeps fsspec from asking for it
    with filesystem.open(url, "rb", block_size=0, size=1, **asked) as stream:
        return cache.add(_Body(stream, PurePosixPath(urlsplit(url).path).name))


class _Body:
    """The body of an answer, which the server may have compressed, unasked."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name, self._unpacked = stream, name, 0

    def read(self, size: int) -> bytes:
        chunk = bytes(self._stream.read(size))
        self._unpacked += len(chunk)
        # None of a body that is not compressed
        if packed := self._stream.r.content.total_compressed_bytes:
            check_growth(self._name, packed, self._unpacked, "download and unpack it yourself")
        return chunk


def _etag(info: Meta) -> str:
    """Return a file's strong ETag, or ""."""
    # weak ETags and modification times may stay the same when bytes change
    tag = str(info.get("ETag") or info.get("etag") or "")
    return "" if tag.startswith("W/") or not tag else f"{tag} {info.get('size')}"


def resolve_hub(repo: str, name: str | None, revision: str, settings: FileSettings, resolver: Resolver) -> Source:
    """Return a Source with the present commit of a hub dataset's `revision`. Raises DataError, ConfigError."""
    answer, note = resolver.ask_or_recall(f"hub/datasets/{repo}@{revision}", lambda: _ask_hub(repo, revision))
    identity = {"hub": repo, "name": name, "commit": answer["commit"], "splits": dict(settings.splits)}
    return Source("data", identity, dict(identity), note)


def _ask_hub(repo: str, revision: str) -> Json:
    from huggingface_hub import HfApi

    with hub_errors("data", repo, revision):
        info = described(lambda seconds: HfApi().dataset_info(repo, revision=revision, timeout=seconds))
        return {"commit": info.sha}


def _unreadable(source: str, error: Exception) -> DataError:
    what, fix = explain_error(error, source)
    return DataError(f"data.source: {scrub(source)}: {scrub(what)}", fix)
