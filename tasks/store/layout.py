"""Names of files in a store; parsing and checking of manifests and records."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from trnflow.tasks.artifact import LONGEST_NAME, File, Meta, checked_path
from trnflow.tasks.documents import Manifest, Record
from trnflow.tasks.errors import StoreError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.keys.hash_cache import sha256_bytes
from trnflow.tasks.store.backend import Entry, is_unfinished
from trnflow.tasks.system.garbage import no_collections
from trnflow.tasks.system.json_objects import check_levels, misfit, parse_object, read_object

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
_PLAIN_PATH = re.compile(r"(?:[\w-][\w.-]*/)*[\w-][\w.-]*", re.ASCII)


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
        return _checked_document(parse_object(data))


def _checked_document(document: Meta) -> tuple[Manifest, tuple[File, ...]]:
    try:
        if not isinstance(document["kind"], str) or not isinstance(document["meta"], dict):
            raise ValueError("it has no kind or no metadata")
        check_levels(document["meta"])  # of the files' levels the loop says enough, at no cost
        files = tuple(map(File._make, document["files"]))
        for path, size, digest in files:  # a hot loop: there may be 100,000 files
            if not _DIGEST.fullmatch(digest):
                blob_name(digest)
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"the size of {path} is {size!r}")
            if not _PLAIN_PATH.fullmatch(path) or len(path) > LONGEST_NAME:
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


def read_shape(data: bytes, shape: Any) -> Meta:
    """Parse a document of the store. shape: its TypedDict. Raises ValueError if it is damaged or of another shape."""
    document = read_object(data)
    if wrong := misfit(document, shape):
        raise ValueError(f"it is not of its kind's shape: {wrong}")
    return document


def checked_record(name: str, data: bytes) -> Record:
    """Parse and check a record, without its artifact. Raises ValueError if it is not of the stage and key in `name`."""
    record = cast(Record, read_object(data))
    try:
        if record_name(record["stage"], record["key"]) != name:
            raise ValueError(f"it is the record of {record['stage']} {record['key'][:12]}")
        if digest_of(record["document"]) != f"sha256:{record['key']}":
            raise ValueError("its key document has another key")
        blob_name(record["artifact"])
    except (KeyError, TypeError, AttributeError, StoreError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    wrong = misfit({"schema": SCHEMA, **record}, Record)
    if record.get("schema", SCHEMA) != SCHEMA:
        wrong = f"its schema is {record['schema']!r}"
    elif not wrong and record["document"]["stage"] != record["stage"]:
        wrong = "its key document is of another stage"
    elif not wrong and "/" in record["attempt"]:
        wrong = "it names no attempt"
    if wrong:
        raise ValueError(f"it is not of a record's shape: {wrong}")
    return record
