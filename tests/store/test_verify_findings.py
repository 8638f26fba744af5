"""What `verify` says of a store, by one file each: `test_verify` damages whole runs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers.stores import new_store
from tests.store.test_collect import made, record_of
from tests.store.test_verify import found
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.keys.hash_cache import sha256_bytes, stamp
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.trash import into_trash
from trnflow.tasks.store.layout import blob_name, record_name
from trnflow.tasks.store.verify import verify


def test_a_sound_store_is_said_to_be_sound(store: Store, tmp_path: Path) -> None:
    for name in ("one", "two"):
        made(store, tmp_path, name, {"own": name.encode(), "shared": b"shared"})
    result = verify(store.backend)
    assert (result.ok, result.problems, result.unreferenced) == (True, [], 0)
    none = dict.fromkeys(("attempts", "runs", "roots", "leases", "partial", "jobs", "machines"), 0)
    assert result.checked == {"records": 2, "blobs": 5, **none}
    assert result.bytes == sum(entry.size for entry in store.backend.entries("blobs"))


def test_a_blob_of_no_record_is_counted_and_not_wrong(store: Store, tmp_path: Path) -> None:
    artifact = made(store, tmp_path, "one", {"x": b"four"})
    store.backend.remove(record_name("s", record_of("one", artifact.digest)["key"]))
    result = verify(store.backend)
    assert result.ok
    assert (result.unreferenced, result.unreferenced_bytes) == (2, result.bytes)


def test_bytes_are_read_whatever_the_memo_says(tmp_path: Path) -> None:
    """Bit rot changes no time of a file."""
    store = new_store(tmp_path)
    artifact = made(store, tmp_path, "one", {"x": b"bytes"})
    store.link_files(artifact, tmp_path / "view")
    blob = tmp_path / "store" / blob_name(artifact.files[0].digest)
    blob.chmod(0o644)
    blob.write_bytes(b"bites")
    store.memo.put("blob", blob, stamp(blob), artifact.files[0].digest)
    assert ("corrupt", blob_name(artifact.files[0].digest)) in found(verify(store.backend))


def test_what_lies_in_the_trash_is_brought_back_before_anything_is_given_up(store: Store, tmp_path: Path) -> None:
    name = blob_name(made(store, tmp_path, "one", {"x": b"x"}).files[0].digest)
    store.backend.move(name, into_trash(name, 1.0))
    assert [what for what, _ in found(verify(store.backend))] == ["unusable"]
    assert store.backend.size(name) is None, "looking repairs nothing"
    assert found(verify(store.backend, repair=True)) == [("missing", name)]
    assert verify(store.backend).problems == []


def test_documents_that_are_no_documents_are_named(store: Store, tmp_path: Path) -> None:
    record = record_of("one", made(store, tmp_path, "one", {"x": b"x"}).digest)
    other = record_name("s", "f" * 64)
    store.backend.replace(other, json.dumps(record).encode())
    store.backend.replace(record_name("s", record["key"]), json.dumps(record | {"document": {}}).encode())
    for name in ("runs/r.json", "attempts/k/a.json", "roots/pins/p.json"):
        store.backend.replace(name, b"[]")
    wrong = {"runs/r.json", "attempts/k/a.json", "roots/pins/p.json", other, record_name("s", record["key"])}
    assert set(found(verify(store.backend))) == {("corrupt", name) for name in wrong}
    assert not verify(store.backend, repair=True).ok
    # what is kept, and who is champion, is for the owner to say
    assert found(verify(store.backend)) == [("corrupt", "roots/pins/p.json")]


def test_a_pin_that_leads_nowhere_is_not_repaired_behind_its_owners_back(store: Store) -> None:
    pin = json.dumps({"artifact": f"sha256:{'0' * 64}"}).encode()
    store.backend.create("roots/pins/p.json", pin)
    result = verify(store.backend, repair=True)
    assert not result.ok
    assert found(result) == [("unusable", "roots/pins/p.json")]
    assert store.backend.read("roots/pins/p.json") == pin


def test_a_corrupt_file_in_the_cache_of_a_remote_store_is_dropped(tmp_path: Path) -> None:
    store = new_store(tmp_path, "memory://cached")
    artifact = made(store, tmp_path, "one", {"x": b"bytes"})
    store.link_files(artifact, tmp_path / "view")
    cached = store.cache / blob_name(artifact.files[0].digest)
    cached.chmod(0o644)
    cached.write_bytes(b"bites")
    assert found(verify(store.backend, cache=store.cache)) == [("corrupt", str(cached))]
    assert cached.exists(), "looking repairs nothing"
    assert verify(store.backend, repair=True, cache=store.cache).ok
    assert not cached.exists()
    assert verify(store.backend, cache=store.cache).problems == []


def test_a_record_of_what_its_stage_does_not_make_is_unusable(store: Store, tmp_path: Path) -> None:
    artifact = made(store, tmp_path, "one", {"x": b"four"})
    assert verify(store.backend, kinds={"s": artifact.kind}).ok
    (problem,) = verify(store.backend, kinds={"s": "checkpoint"}).problems
    assert problem.what == "unusable" and f"is of kind {artifact.kind}, and s makes checkpoint" in problem.detail


def test_a_manifest_that_says_another_size_than_the_file_has_is_no_artifact(store: Store, tmp_path: Path) -> None:
    artifact = made(store, tmp_path, "one", {"x": b"four"})
    ((path, size, digest),) = artifact.files
    forged = canonical({"kind": artifact.kind, "meta": {}, "files": [[path, size + 1, digest]]}).encode()
    name = sha256_bytes(forged)
    store.backend.create(blob_name(name), forged)
    store.publish(record_of("forged", name))
    (problem,) = verify(store.backend).problems
    assert problem.what == "unusable" and problem.detail == f"x ({digest[:19]}) is missing or corrupt"
