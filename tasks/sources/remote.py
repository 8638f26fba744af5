"""Resolve datasets that are not on this machine: URLs of any fsspec file system, and dataset names of the Hugging Face hub.

A URL's files are downloaded when the URL is resolved, because the stage key needs their digests. A file whose strong
ETag (the server's identifier of the file's bytes) has not changed is not downloaded again. A hub name is pinned to a
commit. Offline, the commit or digests found last time are used. Fails with DataError (missing, gated, unreachable) or
MissingDependency (the file system's package is not installed).
"""

from __future__ import annotations

import glob
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from trnflow.tasks.artifact import Json, Meta, Source
from trnflow.tasks.errors import DataError, MissingDependency
from trnflow.tasks.sources.data_files import DataFile, visible_files
from trnflow.tasks.sources.hub_errors import hub_errors
from trnflow.tasks.sources.remote_errors import explain_error
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.sources.split_files import FileSettings, choose_files, files_source
from trnflow.tasks.sources.zip_files import unzipped
from trnflow.tasks.system.redaction import scrub

_NETWORK = "check the URL, the network and the credentials in the environment"


def resolve_url(source: str, settings: FileSettings, resolver: Resolver) -> Source:
    """Resolve the dataset at a URL of any fsspec file system: download its files to the download cache (`cache/data` in
    the folder of local state) and return a Source (exact bytes from outside the store) with the split, format and
    digest of each file. Offline, nothing is downloaded, and the digests found last time are returned.

    settings: the recipe's settings for finding the files and their formats; resolver: the caches of this machine, and
    whether the network may be asked. Raises DataError (missing, unreachable), MissingDependency (the file system's
    package is not installed), ConfigError (no train split, or offline and never resolved before)."""
    asked = f" {settings.format} {sorted(settings.splits.items())}" if settings.format or settings.splits else ""
    answer, note = resolver.remembered(f"url/{source}{asked}", lambda: _ask_url(source, settings, resolver))
    cache = resolver.downloads()
    return files_source(answer["files"], [{"path": str(cache.path(file["digest"]))} for file in answer["files"]], note)


def _ask_url(source: str, settings: FileSettings, resolver: Resolver) -> Json:
    filesystem, found = _remote_files(source)
    cache = resolver.downloads()

    def fetch(file: DataFile) -> str:
        try:
            return _download(filesystem, file.path, source, resolver)
        except Exception as error:  # each library raises its own errors, and not all are OSErrors
            raise _unreadable(source, error) from error

    found, zips = unzipped(source, found, lambda file: cache.path(fetch(file)), resolver)
    chosen = choose_files(source, found, settings)
    digests = [resolver.memo.digest(item.file.path) if item.file.path in zips else fetch(item.file) for item in chosen]
    return {"files": [item.entry(digest) for item, digest in zip(chosen, digests, strict=True)]}


def _remote_files(source: str) -> tuple[Any, list[DataFile]]:
    """Return (the fsspec file system, the files at the URL). An http(s) URL names one file, since http has no
    folders."""
    from fsspec.core import url_to_fs

    try:
        filesystem, path = url_to_fs(source)
        if source.startswith(("http://", "https://")):
            return filesystem, [DataFile(PurePosixPath(urlsplit(path).path).name, path)]
        if glob.has_magic(path):
            paths = filesystem.glob(path)
        elif filesystem.isdir(path):
            paths = filesystem.find(path, maxdepth=2)
        else:
            paths = [path] if filesystem.exists(path) else []
    except ImportError as error:
        raise MissingDependency(
            f"data.source: reading {source.split('://')[0]}:// needs a package: {_one_line(error)}",
            "pip install 'trnflow[s3]' or 'trnflow[gcs]'",
        ) from error
    except Exception as error:
        raise _unreadable(source, error) from error
    if not paths:
        raise DataError(f"data.source: there is nothing at {scrub(source)}", _NETWORK)
    return filesystem, visible_files(
        (found.removeprefix(path).strip("/") or PurePosixPath(path).name, found) for found in paths
    )


def _download(filesystem: Any, path: str, source: str, resolver: Resolver) -> str:
    """Download a file into the download cache and return its digest. Nothing is downloaded if the file's strong ETag
    has not changed."""
    cache = resolver.downloads()
    tag = _etag(filesystem.info(path))
    asked = resolver.lookup_name(f"{source} {path}")
    known = resolver.memo.get("etag", asked, tag) if tag else None
    if known is not None and cache.has(known):
        return str(known)
    with filesystem.open(path, "rb") as stream:
        digest = cache.add(stream)
    if tag:
        resolver.memo.put("etag", asked, tag, digest)
        resolver.memo.save()
    return digest


def _etag(info: Meta) -> str:
    """Return the file's strong ETag, which changes whenever the bytes change; empty for a weak ETag or none, because
    weak ETags and modification times may stay the same."""
    tag = str(info.get("ETag") or info.get("etag") or "")
    return "" if tag.startswith("W/") or not tag else f"{tag} {info.get('size')}"


def resolve_hub(repo: str, name: str | None, revision: str, settings: FileSettings, resolver: Resolver) -> Source:
    """Resolve a dataset of the Hugging Face hub: ask the hub at which commit `revision` is now, and return a Source
    (exact bytes from outside the store) with this commit. Offline, the commit found last time is used. No files are
    downloaded.

    Args:
        repo: the dataset's name on the hub.
        name: the dataset's configuration, or None; whether the dataset has it is not checked here.
        revision: a branch, tag or commit.
        settings: the recipe's settings for finding the files; only `splits` is used.
        resolver: the caches of this machine, and whether the network may be asked.

    Raises DataError (missing, gated, unreachable), ConfigError (no such revision, or offline and never resolved
    before).
    """
    answer, note = resolver.remembered(f"hub/datasets/{repo}@{revision}", lambda: _ask_hub(repo, revision))
    identity = {"hub": repo, "name": name, "commit": answer["commit"], "splits": dict(settings.splits)}
    return Source("data", identity, dict(identity), note)


def _ask_hub(repo: str, revision: str) -> Json:
    from huggingface_hub import HfApi

    with hub_errors("data", repo, revision):
        return {"commit": HfApi().dataset_info(repo, revision=revision).sha}


def _unreadable(source: str, error: Exception) -> DataError:
    what, fix = explain_error(error, source)
    return DataError(f"data.source: {scrub(source)}: {scrub(what)}", fix)


def _one_line(error: BaseException) -> str:
    return scrub(" ".join(str(error).split())) or type(error).__name__
