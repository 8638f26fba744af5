"""Datasets that are not on this machine: URLs of any fsspec file system, and the hub's by name and commit.

A URL's files are downloaded when it is resolved, into a cache under their sha256, so that their bytes can stand in the
key; a strong ETag only saves the download. A hub name is pinned to a commit. Offline, the last answer serves.
Fails with DataError (missing, gated, unreachable) or MissingDependency (no package for the file system).
"""

from __future__ import annotations

import glob
import hashlib
import os
from pathlib import PurePosixPath
from typing import IO, Any

from tasks.artifact import Json, Meta, Source
from tasks.errors import DataError, MissingDependency
from tasks.hub import hub_errors
from tasks.resolve import Resolver
from tasks.text.files import Candidate, candidates
from tasks.text.sources import Wanted, choose, pinned, source_of
from tasks.text.zips import opened

_CHUNK = 1 << 20
_NETWORK = "check the URL, the network and the credentials in the environment"


def resolve_url(source: str, wanted: Wanted, resolver: Resolver) -> Source:
    settings = f" {wanted.format} {sorted(wanted.splits.items())}" if wanted.format or wanted.splits else ""
    answer, note = resolver.remembered(f"url/{source}{settings}", lambda: _ask_url(source, wanted, resolver))
    cache = resolver.cache("data")
    places = [{"path": str(cache / file["digest"].removeprefix("sha256:"))} for file in answer["files"]]
    return source_of(answer["files"], places, note)


def _ask_url(source: str, wanted: Wanted, resolver: Resolver) -> Json:
    filesystem, found = _remote_files(source)

    def fetch(item: Candidate) -> str:
        try:
            return _fetched(filesystem, item.place, source, resolver)
        except FileNotFoundError as error:
            raise DataError(f"data.source: there is no {item.place} ({source})", "check the URL") from error
        except (OSError, ValueError) as error:
            raise DataError(f"data.source: {source} can't be read: {_line(error)}", _NETWORK) from error

    cache = resolver.cache("data")
    found, members = opened(source, found, lambda item: cache / fetch(item).removeprefix("sha256:"), resolver)
    chosen = choose(source, found, wanted)
    return {
        "files": [
            pinned(item, resolver.memo.digest(item.file.place) if item.file.place in members else fetch(item.file))
            for item in chosen
        ]
    }


def _remote_files(source: str) -> tuple[Any, list[Candidate]]:
    """An fsspec file system, and the files there; http(s) knows no folders."""
    from fsspec.core import url_to_fs

    try:
        filesystem, path = url_to_fs(source)
        if source.startswith(("http://", "https://")):
            return filesystem, [Candidate(PurePosixPath(path.split("?")[0]).name, path)]
        if glob.has_magic(path):
            paths = filesystem.glob(path)
        elif filesystem.isdir(path):
            paths = filesystem.find(path, maxdepth=2)
        else:
            paths = [path] if filesystem.exists(path) else []
    except ImportError as error:
        raise MissingDependency(
            f"data.source: reading {source.split('://')[0]}:// needs a package: {_line(error)}",
            "pip install 'trnflow[s3]' or 'trnflow[gcs]'",
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"data.source: {source} can't be listed: {_line(error)}", _NETWORK) from error
    if not paths:
        raise DataError(f"data.source: there is nothing at {source}", _NETWORK)
    return filesystem, candidates(
        (found.removeprefix(path).strip("/") or PurePosixPath(path).name, found) for found in paths
    )


def _fetched(filesystem: Any, path: str, source: str, resolver: Resolver) -> str:
    """The file's digest; its bytes lie in the cache under it. Not downloaded again while its strong ETag stays."""
    cache = resolver.cache("data")
    tag = _etag(filesystem.info(path))
    known = resolver.memo.get("etag", f"{source} {path}", tag) if tag else None
    if known is not None:
        held = cache / str(known).removeprefix("sha256:")
        if held.exists() and resolver.memo.digest(held) == known:
            return str(known)
    aside = cache / f".{os.getpid()}"
    try:
        with filesystem.open(path, "rb") as remote, aside.open("wb") as local:
            digest = _copy(remote, local)
        aside.replace(cache / digest.removeprefix("sha256:"))
    finally:
        aside.unlink(missing_ok=True)
    if tag:
        resolver.memo.put("etag", f"{source} {path}", tag, digest)
        resolver.memo.save()
    return digest


def _etag(info: Meta) -> str:
    """A tag that changes with the bytes, or "": weak tags and times of change don't promise that."""
    tag = str(info.get("ETag") or info.get("etag") or "")
    return "" if tag.startswith("W/") or not tag else f"{tag} {info.get('size')}"


def _copy(remote: IO[bytes], local: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := remote.read(_CHUNK):
        digest.update(chunk)
        local.write(chunk)
    return f"sha256:{digest.hexdigest()}"


def resolve_hub(repo: str, name: str | None, revision: str, wanted: Wanted, resolver: Resolver) -> Source:
    answer, note = resolver.remembered(f"hub/datasets/{repo}@{revision}", lambda: _ask_hub(repo, revision))
    identity = {"hub": repo, "name": name, "commit": answer["commit"], "splits": dict(wanted.splits)}
    return Source("data", identity, dict(identity), note)


def _ask_hub(repo: str, revision: str) -> Json:
    from huggingface_hub import HfApi

    with hub_errors("data", repo, revision):
        return {"commit": HfApi().dataset_info(repo, revision=revision).sha}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
