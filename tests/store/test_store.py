from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.stores import new_store, record_of, recorded
from tests.store.conftest import on_s3_too
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import BlobLost, StoreError
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.trash import into_trash
from trnflow.tasks.store.layout import blob_name, record_name


def folder_of(tmp_path: Path, files: dict[str, bytes]) -> Path:
    folder = tmp_path / "out"
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def ingested(store: Store, tmp_path: Path, files: dict[str, bytes] | None = None) -> Artifact:
    folder = folder_of(tmp_path, files or {"a.txt": b"alpha", "sub/b.bin": b"beta" * 100, "empty": b""})
    artifact = store.ingest(folder, "texts", {"splits": {"train": 2}})
    shutil.rmtree(folder)
    return artifact


def record_for(artifact: Artifact) -> dict[str, Any]:
    return record_of(artifact.digest)


KEY = record_of("")["key"]


@on_s3_too
def test_an_artifact_comes_back_as_it_went_in(store: Store, tmp_path: Path) -> None:
    artifact = ingested(store, tmp_path)
    again = store.artifact(artifact.digest)
    assert again == artifact
    assert [file.path for file in again.files] == ["a.txt", "empty", "sub/b.bin"]
    folder = store.link_files(again, tmp_path / "view")
    assert (folder / "a.txt").read_bytes() == b"alpha"
    assert (folder / "sub/b.bin").read_bytes() == b"beta" * 100
    assert (folder / "empty").read_bytes() == b""
    assert {(folder / file.path).stat().st_mode & 0o777 for file in again.files} == {0o444}


def test_equal_bytes_are_the_same_artifact_and_metadata_counts(store: Store, tmp_path: Path) -> None:
    first = ingested(store, tmp_path)
    assert ingested(store, tmp_path).digest == first.digest
    folder = folder_of(tmp_path, {"a.txt": b"alpha", "sub/b.bin": b"beta" * 100, "empty": b""})
    assert store.ingest(folder, "texts", {"splits": {"train": 3}}).digest != first.digest


@on_s3_too
def test_a_record_is_created_once_and_the_first_wins(store: Store, tmp_path: Path) -> None:
    one, other = ingested(store, tmp_path), ingested(store, tmp_path, {"x": b"y"})
    assert store.publish(record_for(one))["artifact"] == one.digest
    assert store.publish(record_for(other))["artifact"] == one.digest
    found = store.record("s", KEY)
    assert found is not None
    assert found["artifact"] == one.digest
    assert store.publish(record_for(other), replace=True)["artifact"] == other.digest
    assert store.records("s")[0]["artifact"] == other.digest


@on_s3_too
def test_creation_is_exclusive_among_threads(store: Store) -> None:
    barrier = threading.Barrier(8)

    def create(number: int) -> bool:
        barrier.wait()
        return store.backend.create("records/race/one.json", f"{number}".encode())

    with ThreadPoolExecutor(8) as pool:
        (won,) = [number for number, is_first in enumerate(pool.map(create, range(8))) if is_first]
    assert store.backend.read("records/race/one.json") == f"{won}".encode()


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "delete"])
def test_a_damaged_blob_is_found_at_first_use_and_healed_by_the_next_ingest(
    store: Store, tmp_path: Path, damage: str
) -> None:
    artifact = ingested(store, tmp_path)
    victim = next(file for file in artifact.files if file.path == "sub/b.bin")
    data = b"beta" * 100
    damaged = {"flip": b"B" + data[1:], "truncate": data[:-1], "empty": b"", "delete": None}[damage]
    name = blob_name(victim.digest)
    store.backend.remove(name)
    if damaged is not None:
        store.backend.replace(name, damaged)
    fresh = Store(store.root, tmp_path / "another machine")
    with pytest.raises(BlobLost) as caught:
        fresh.link_files(artifact, tmp_path / "view")
    assert caught.value.digest == victim.digest
    assert "sub/b.bin" in str(caught.value)
    assert ingested(fresh, tmp_path) == artifact
    assert (fresh.link_files(artifact, tmp_path / "healed") / "sub/b.bin").read_bytes() == data


@on_s3_too
def test_a_damaged_manifest_or_record_is_a_miss_not_a_crash(store: Store, tmp_path: Path) -> None:
    artifact = ingested(store, tmp_path)
    store.publish(record_for(artifact))
    store.backend.replace(blob_name(artifact.digest), b'{"kind": "texts"}')
    with pytest.raises(BlobLost):
        store.artifact(artifact.digest)
    store.backend.replace(f"records/s/{KEY}.json", b"{half")
    assert store.record("s", KEY) is None
    assert store.publish(record_for(artifact))["artifact"] == artifact.digest


def test_a_changed_blob_behind_a_checkout_is_noticed(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    artifact = ingested(store, tmp_path)
    folder = store.link_files(artifact, tmp_path / "view")
    assert store.changed(artifact) is None
    blob = Path(os.path.realpath(folder / "a.txt"))
    blob.chmod(0o644)
    blob.write_bytes(b"omega")
    found = store.changed(artifact)
    assert found is not None
    assert found.path == "a.txt"


def test_an_unwritable_store_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=r"store\.root|disk"):
        Store(str(tmp_path / "file" / "store"), tmp_path / "home").prepare()


def test_a_bucket_that_is_not_there_is_an_error_not_a_miss(s3_endpoint: str, tmp_path: Path) -> None:
    with pytest.raises((StoreError, FileNotFoundError)):
        Store("s3://no-such-bucket-here/x", tmp_path / "home").prepare()


def test_a_folder_that_can_not_be_listed_is_an_error_and_not_empty(tmp_path: Path) -> None:
    """Garbage collection would take it for one without pins."""
    store = Store(str(tmp_path / "store"), tmp_path / "home")
    store.backend.create("roots/a.json", b"{}")
    name = f"roots/{'x' * 300}"  # longer than a file system takes: root, too, can't list it
    for listing in (store.backend.names, store.backend.entries):
        with pytest.raises(StoreError, match="listing"):
            listing(name)
    assert store.backend.names("roots/none") == store.backend.entries("roots/none") == []


@pytest.mark.parametrize(
    ("root", "disk", "fix"),
    [
        ("store", "store", "store.root"),
        ("home/work/rehearsal", "home", "TRNFLOW_HOME"),
        ("memory://full", "home", "TRNFLOW_HOME"),
    ],
)
def test_a_disk_without_room_is_named_and_so_is_what_chooses_another(
    tmp_path: Path, root: str, disk: str, fix: str
) -> None:
    """The files of a stage that runs lie on the home's disk if the store is remote."""
    where = root if "://" in root else str(tmp_path / root)
    with pytest.raises(StoreError, match=f"GB are free on the disk of the {disk} .*with 12.3 MB to spare") as caught:
        Store(where, tmp_path / "home").check_space(1 << 60, 12_300_000)
    assert f"choose another {fix}" in caught.value.fix
    with pytest.raises(StoreError, match=r"and 1152921504.6 GB must stay free"):
        Store(where, tmp_path / "home").check_space(0, 1 << 60)


def test_what_a_killed_writer_left_has_no_name(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for name in ("whole.json", ".0123"):
        (tmp_path / "store/records/s").mkdir(parents=True, exist_ok=True)
        (tmp_path / "store/records/s" / name).write_text("half")
    assert store.backend.names("records") == ["records/s/whole.json"]


def test_a_run_brings_back_what_it_names_from_the_trash(store: Store, tmp_path: Path) -> None:
    """A collection may move a result just before a run that used it is written down."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made/x").write_bytes(b"x")
    artifact = store.ingest(tmp_path / "made", "texts", {})
    record = record_of(artifact.digest)
    store.publish(record)
    place = record_name("s", record["key"])
    gone = [place, *(blob_name(digest) for digest in (artifact.digest, artifact.files[0].digest))]
    for name in gone:
        store.backend.move(name, into_trash(name, 1.0))
    stages = [recorded("s", record["key"], artifact.digest)]
    store.write_run("r", {"recipe": "tiny", "outcome": "completed", "stages": stages})
    assert [store.backend.size(name) is not None for name in gone] == [True] * 3
    assert store.record("s", record["key"]) == record


def test_an_object_store_that_replaces_what_it_should_create_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store("memory://replaces", tmp_path / "home")
    monkeypatch.setattr(store.backend, "create", lambda name, data: True)
    with pytest.raises(StoreError, match="does not create files exclusively"):
        store.prepare()
