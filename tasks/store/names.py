"""Where things lie in a store, and what a manifest says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from tasks.artifact import Meta
from tasks.errors import StoreError
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
    """The manifest, or None when the bytes are not those of `digest` or say nothing of files."""
    try:
        sound = sha256_bytes(data) == digest and isinstance((document := json.loads(data))["files"], list)
    except (ValueError, TypeError, KeyError):
        return None
    return dict(document) if sound else None
