"""Documents of a store that say what is not so are refused, each for its reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.stores import record_of
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.keys.hash_cache import sha256_bytes
from trnflow.tasks.store.backend import Entry
from trnflow.tasks.store.garbage.trash import into_trash, read_trash
from trnflow.tasks.store.layout import checked_manifest, checked_record, record_name

GOOD = sha256_bytes(b"evil")
FORGED: dict[str, tuple[Any, str]] = {
    "a path out": ([["../evil", 4, GOOD]], "evil"),
    "a path below a file": ([["a.txt", 4, GOOD], ["a.txt/evil", 4, GOOD]], "a file below a file"),
    "a digest out": ([["a.txt", 4, "sha256:../../../evil"]], "is no digest"),
    "a path out further below": ([["a/../../evil", 4, GOOD]], "evil"),
    "an absolute path": ([["/tmp/evil", 4, GOOD]], "evil"),
    "a path twice": ([["a.txt", 4, GOOD], ["a.txt", 4, GOOD]], "a path twice"),
    "a zero byte in a path": ([["a\0.txt", 4, GOOD]], "not a normalised path"),
    "a name that no disk takes": ([["a" * 256, 4, GOOD]], "not a normalised path"),
    "a name of two bytes a letter": ([["é" * 128, 4, GOOD]], "not a normalised path"),
    "a path that no disk takes": ([["a/" * 2000 + "a", 4, GOOD]], "not a normalised path"),
    "an empty path": ([["", 4, GOOD]], "the path '', which"),
    "no digest": ([["a.txt", 4]], "Expected 3 arguments, got 2"),
    "no list": ("a.txt", "Expected 3 arguments, got 1"),
    "no path": ([[5, 4, GOOD]], "expected string"),
    "a negative size": ([["a.txt", -1, GOOD]], "size of a.txt is -1"),
}


def manifest_of(files: Any) -> bytes:
    return canonical({"kind": "sizes", "meta": {}, "files": files}).encode()


@pytest.mark.parametrize(("files", "says"), FORGED.values(), ids=FORGED)
def test_a_manifest_that_is_forged_is_refused(files: Any, says: str) -> None:
    data = manifest_of(files)
    with pytest.raises(ValueError, match=says):
        checked_manifest(data, sha256_bytes(data))


def test_a_manifest_is_that_of_its_digest_alone() -> None:
    data = manifest_of([["a.txt", 4, GOOD]])
    assert [file.path for file in checked_manifest(data, sha256_bytes(data))[1]] == ["a.txt"]
    with pytest.raises(ValueError, match="its bytes have another digest"):
        checked_manifest(data, GOOD)


def test_a_record_is_that_of_its_key_alone() -> None:
    record = record_of(GOOD)
    key, document = record["key"], record["document"]
    assert checked_record(record_name("s", key), json.dumps(record).encode()) == record
    other = record | {"document": document | {"params": {"rate": 1}}}
    with pytest.raises(ValueError, match="its key document has another key"):
        checked_record(record_name("s", key), json.dumps(other).encode())
    with pytest.raises(ValueError, match="it is the record of s"):
        checked_record(record_name("s", "f" * 64), json.dumps(record).encode())
    with pytest.raises(ValueError, match="its schema is 9"):
        checked_record(record_name("s", key), json.dumps(record | {"schema": 9}).encode())


def test_of_a_file_that_went_to_the_trash_twice_the_later_one_comes_back() -> None:
    name = "records/s/1"
    entries = [Entry(into_trash(name, at), 1, 0.0) for at in (999.0, 20_000.0, 3_000.0)]
    assert read_trash([*entries, Entry("trash/clock", 0, 0.0)]) == {name: entries[1]}
