"""Where things lie in a store, and what a manifest says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from tasks.artifact import File, Meta, checked_path
from tasks.errors import StoreError
from tasks.fingerprint import digest_of
from tasks.memo import sha256_bytes
from tasks.store.backend import Entry

SHARD = ".shard"
"""What follows a stage's name in that of its shards: `records/tokenize_text.shard/`."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def blob_name(digest: str) -> str:
    """`sha256:abcd...` -> `blobs/sha256/ab/abcd...`"""
    if not _DIGEST.fullmatch(digest):
        raise StoreError(f"{digest!r} is no digest", "digests are written sha256:<64 hexadecimal digits>")
    return f"blobs/sha256/{digest[7:9]}/{digest[7:]}"


def record_name(stage: str, key: str) -> str:
    return f"records/{stage}/{key}.json"


def newest_runs(entries: Iterable[Entry]) -> list[str]:
    """Ids of runs, newest first: they begin with the second they started in; within it, those written later are newer."""
    told = [
        (entry.name.split("/")[1].removesuffix(".json"), entry.time) for entry in entries if not is_aside(entry.name)
    ]
    return [run for run, _ in sorted(told, key=lambda item: (item[0].split("-")[0], item[1], item[0]), reverse=True)]


def is_aside(name: str) -> bool:
    """Whether a name is one of those that writers use before they give a file its own."""
    return name.rsplit("/", 1)[-1].startswith(".")


def read_manifest(data: bytes, digest: str) -> Meta | None:
    """The manifest, or None when it is none: see `checked_manifest`."""
    try:
        return checked_manifest(data, digest)[0]
    except ValueError:
        return None


def checked_manifest(data: bytes, digest: str) -> tuple[Meta, tuple[File, ...]]:
    """A manifest and its files. ValueError says why the bytes are not those of `digest`, or are of no artifact: a path that
    leaves its folder, a path twice, or one below a file."""
    if sha256_bytes(data) != digest:
        raise ValueError("its bytes have another digest")
    document = read_object(data)
    try:
        if not isinstance(document["kind"], str) or not isinstance(document["meta"], dict):
            raise ValueError("it has no kind or no metadata")
        files = tuple(File(*entry) for entry in document["files"])
        for file in files:
            checked_path(file.path)
            blob_name(file.digest)
    except (KeyError, TypeError, AttributeError, StoreError) as error:
        raise ValueError(str(error)) from error
    names = {file.path for file in files}
    if len(names) != len(files):
        raise ValueError("it holds a path twice")
    folders = {path.rpartition("/")[0] for path in names}
    while folders := folders - {""}:
        if not names.isdisjoint(folders):
            raise ValueError("it holds a file below a file")
        folders = {path.rpartition("/")[0] for path in folders}
    return document, files


def read_object(data: bytes) -> Meta:
    """The JSON object that the bytes are. ValueError when they are none."""
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def checked_record(name: str, data: bytes) -> Meta:
    """The record of this name. ValueError says why the bytes can't be those of one: damaged, or of another key."""
    record = read_object(data)
    try:
        if record_name(record["stage"], record["key"]) != name:
            raise ValueError(f"it is the record of {record['stage']} {record['key'][:12]}")
        if digest_of(record["document"]) != f"sha256:{record['key']}":
            raise ValueError("its key document has another key")
        blob_name(record["artifact"])
        if not isinstance(record["created"], str) or "/" in record["attempt"]:
            raise ValueError("it names no attempt, or no time")
    except (KeyError, TypeError, AttributeError, StoreError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return record
