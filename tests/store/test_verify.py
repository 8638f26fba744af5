"""`verify` finds what is wrong wherever it is, and `--repair` leaves a store that is sound and makes the rest anew."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from tests.helpers.products import sampled
from tests.helpers.stores import new_store
from tests.store.conftest import on_s3_too
from tests.store.shared_store import run_once
from tests.store.test_collect import made, record_of
from trnflow.tasks.keys.hash_cache import stamp
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.trash import into_trash
from trnflow.tasks.store.layout import blob_name, record_name
from trnflow.tasks.store.verify import Verified, verify

Found = list[tuple[str, str]]
WHATS = ("file", "manifest", "record")
HOWS = ("flip", "truncate", "empty", "delete")


def found(result: Verified) -> Found:
    return [(problem.what, problem.name) for problem in result.problems]


def damage(store: Store, name: str, how: str) -> None:
    data = store.backend.read(name)
    store.backend.remove(name)
    if store.backend.local is not None and how in ("loop", "unreadable", "folder", "empty folder"):
        path = store.backend.local / name
        if how in ("loop", "unreadable"):  # reading this process's memory at 0 is EIO
            path.symlink_to(path.name if how == "loop" else "/proc/self/mem")
        else:
            path.mkdir()
            if how == "folder":
                (path / "x").write_bytes(data)
    elif how != "delete":
        damaged = {"flip": bytes([data[0] ^ 1]) + data[1:], "truncate": data[:-1], "empty": b""}[how]
        store.backend.replace(name, damaged)


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


@sampled("kind, what, how", ["local", "memory"], WHATS, HOWS)
@pytest.mark.usefixtures("inline_calls")
def test_damage_is_found_repaired_and_made_anew(tmp_path: Path, kind: str, what: str, how: str) -> None:
    check_healing(str(tmp_path / "store") if kind == "local" else f"memory://{uuid.uuid4().hex}", tmp_path, what, how)


@pytest.mark.nightly
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("what", WHATS)
def test_damage_in_a_bucket_is_found_repaired_and_made_anew(s3_root: str, tmp_path: Path, what: str, how: str) -> None:
    check_healing(s3_root, tmp_path, what, how)


def check_healing(root: str, tmp_path: Path, what: str, how: str) -> None:
    store = Store(root, tmp_path / "p" / "home")
    store.prepare()
    outcome = run_once(store, tmp_path / "p", "p", 0).steps["sizes"]
    assert outcome.artifact is not None
    record = f"records/sizes/{outcome.key}.json"
    name = {"file": blob_name(outcome.artifact.files[0].digest), "manifest": blob_name(outcome.artifact.digest)}
    victim = name.get(what, record)
    damage(store, victim, how)

    before = verify(store.backend)
    if (what, how) == ("record", "delete"):
        assert before.ok  # no record is a miss, not damage
    else:
        assert not before.ok
        expected: Found = [] if how == "delete" else [("corrupt", victim)]
        assert found(before) == expected + ([] if what == "record" else [("unusable", record)])
        assert found(verify(store.backend)) == found(before), "looking repairs nothing"
    assert verify(store.backend, repair=True).ok
    assert (verify(store.backend).problems, verify(store.backend).ok) == ([], True)

    again = run_once(Store(root, tmp_path / "p" / "home"), tmp_path / "p", "p", 0)
    assert again.actions["sizes"] == "ran"
    assert verify(store.backend).ok
    third = run_once(Store(root, tmp_path / "p" / "home"), tmp_path / "p", "p", 0)
    assert set(third.actions.values()) == {"hit"}


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


@on_s3_too
def test_what_lies_in_the_trash_is_brought_back_before_anything_is_given_up(store: Store, tmp_path: Path) -> None:
    name = blob_name(made(store, tmp_path, "one", {"x": b"x"}).files[0].digest)
    store.backend.move(name, into_trash(name, 1.0))
    assert [what for what, _ in found(verify(store.backend))] == ["unusable"]
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
    assert verify(store.backend, repair=True, cache=store.cache).ok
    assert not cached.exists()
    assert verify(store.backend, cache=store.cache).problems == []


@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("how", ["loop", "unreadable", "folder", "empty folder"])
@pytest.mark.usefixtures("inline_calls")
def test_what_cannot_be_read_is_listed_and_moved_away(tmp_path: Path, what: str, how: str) -> None:
    check_healing(str(tmp_path / "store"), tmp_path, what, how)
