"""Names of files in a store; parsing and checking of manifests and records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import cast

from trnflow.tasks.artifact import File, Json, Meta, checked_path
from trnflow.tasks.documents import Manifest, Record
from trnflow.tasks.errors import StoreError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.keys.hash_cache import sha256_bytes
from trnflow.tasks.keys.key_document import TABLES
from trnflow.tasks.store.backend import Entry, is_unfinished
from trnflow.tasks.system.garbage import no_collections

SCHEMA = 1
"""The schema number of records."""
FORMAT = {"format": 2, "hash": "sha256"}
"""What FORMAT.json of a new store says. In a store of format 1 other files say what ledgers say."""
FORMATS = (FORMAT, {"format": 1, "hash": "sha256"})
SHARD = ".shard"
"""Ends a stage's name in the names of its shards' records: `records/tokenize_text.shard/`."""
_STAMP = re.compile(r"\d{8}T\d{6}Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Matches most paths that `checked_path` accepts, and none that it refuses: an artifact may have 100,000.
_PLAIN_PATH = re.compile(r"(?:[\w-][\w.-]*/)*[\w-][\w.-]*")


def blob_name(digest: str) -> str:
    """Return a blob's path: `sha256:abcd...` -> `blobs/sha256/ab/abcd...`. Raises StoreError."""
    if not _DIGEST.fullmatch(digest):
        raise StoreError(f"{digest!r} is no digest", "digests are written sha256:<64 hexadecimal digits>")
    return f"blobs/sha256/{digest[7:9]}/{digest[7:]}"


def file_name(file: File) -> str:
    """Return a file's `blob_name`, unchecked: its manifest was checked."""
    return f"blobs/sha256/{file.digest[7:9]}/{file.digest[7:]}"


def record_name(stage: str, key: str) -> str:
    return f"records/{stage}/{key}.json"


def document_name(path: str) -> str:
    """Return a JSON file's name without folder and ending: a record's key, a run's id."""
    return path.rsplit("/", 1)[-1].removesuffix(".json")


def newest_runs(entries: Iterable[Entry]) -> list[str]:
    """Return the ids of the runs in a listing, newest first, those dated in the future last."""
    runs = [(document_name(entry.name), entry.time) for entry in entries if not is_unfinished(entry.name)]
    # an id has its run's start to the second: of one second the time of writing decides
    newest = sorted(runs, key=lambda pair: (pair[0].split("-")[0], pair[1], pair[0]), reverse=True)
    return sorted((run for run, _ in newest), key=is_ahead)


def is_ahead(time: str) -> bool:
    """Return whether a time (ISO 8601), or the one in a run's id, is in the future: a clock was wrong, or is now."""
    stamp = time.replace("-", "").replace(":", "")[:16]
    limit = datetime.now(UTC) + timedelta(minutes=5)  # clocks of machines differ
    return _STAMP.fullmatch(stamp) is not None and stamp > f"{limit:%Y%m%dT%H%M%SZ}"


def read_manifest(data: bytes, digest: str) -> Manifest | None:
    """Return a manifest; None if it is invalid."""
    try:
        return checked_manifest(data, digest)[0]
    except ValueError:
        return None


def checked_manifest(data: bytes, digest: str) -> tuple[Manifest, tuple[File, ...]]:
    """Parse and check a manifest; return it and its files.

    Raises:
        ValueError: Another digest; no manifest; a path leads out of the artifact, occurs twice, or is below a file.
    """
    if sha256_bytes(data) != digest:
        raise ValueError("its bytes have another digest")
    with no_collections():
        return _checked_document(read_object(data))


def _checked_document(document: Meta) -> tuple[Manifest, tuple[File, ...]]:
    try:
        if not isinstance(document["kind"], str) or not isinstance(document["meta"], dict):
            raise ValueError("it has no kind or no metadata")
        files = tuple(map(File._make, document["files"]))
        for path, size, digest in files:  # a hot loop: there may be 100,000 files
            if not _DIGEST.fullmatch(digest):
                blob_name(digest)
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"the size of {path} is {size!r}")
            if not _PLAIN_PATH.fullmatch(path):
                checked_path(path)
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
    return cast(Manifest, document), files


def read_object(data: bytes) -> Meta:
    """Parse bytes as a JSON object. Raises ValueError."""
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def checked_record(name: str, data: bytes) -> Record:
    """Parse and check a record, without its artifact. Raises ValueError if it is not of the stage and key in `name`."""
    record = read_object(data)
    try:
        if record_name(record["stage"], record["key"]) != name:
            raise ValueError(f"it is the record of {record['stage']} {record['key'][:12]}")
        if digest_of(record["document"]) != f"sha256:{record['key']}":
            raise ValueError("its key document has another key")
        blob_name(record["artifact"])
    except (KeyError, TypeError, AttributeError, StoreError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    wrong = next(_misshapen(record), None)
    if wrong is not None:
        raise ValueError(f"it is not of a record's shape: {wrong}")
    return cast(Record, record)


def _misshapen(record: Meta) -> Iterator[str]:
    """Yield what is missing or of another type than a record's readers need."""
    document, shards, adopted = record["document"], record.get("shards", []), record.get("adopted", {})
    if record.get("schema", SCHEMA) != SCHEMA:
        yield f"its schema is {record['schema']!r}"
    if document.get("stage") != record["stage"]:
        yield "its key document is of another stage"
    yield from (f"its key document has no table {part}" for part in TABLES if not isinstance(document.get(part), dict))
    attempt = record.get("attempt")
    if not isinstance(attempt, str) or "/" in attempt:
        yield "it names no attempt"
    if not isinstance(record.get("created"), str):
        yield "it names no time"
    if not isinstance(shards, list) or not all(_is_named(shard) for shard in shards):
        yield "its shards have no stage and key each"
    if not isinstance(adopted, dict) or ("adopted" in record and not isinstance(adopted.get("from"), str)):
        yield "it does not name the key that it was adopted from"


def _is_named(shard: Json) -> bool:
    return isinstance(shard, dict) and all(isinstance(shard.get(name), str) for name in ("stage", "key"))
