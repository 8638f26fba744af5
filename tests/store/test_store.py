from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.stores import new_store
from tests.store.conftest import on_s3_too
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import BlobLost, ConfigError, StoreError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import blob_name


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


DOCUMENT: dict[str, Any] = {"stage": "format_prompts", "code": {}, "params": {}, "inputs": {}, "env": {}, "accel": {}}
KEY = digest_of(DOCUMENT).removeprefix("sha256:")


def record_for(artifact: Artifact) -> dict[str, object]:
    return {
        "stage": "format_prompts",
        "key": KEY,
        "document": DOCUMENT,
        "artifact": artifact.digest,
        "attempt": "a1",
        "created": "2026-01-01",
    }


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
    found = store.record("format_prompts", KEY)
    assert found is not None
    assert found["artifact"] == one.digest
    assert store.publish(record_for(other), replace=True)["artifact"] == other.digest
    assert store.records("format_prompts")[0]["artifact"] == other.digest


@on_s3_too
def test_creation_is_exclusive_among_threads(store: Store) -> None:
    wins: list[int] = []
    barrier = threading.Barrier(8)

    def race(number: int) -> None:
        barrier.wait()
        if store.backend.create("records/race/one.json", f"{number}".encode()):
            wins.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert store.backend.read("records/race/one.json") == f"{wins[0]}".encode()


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
    folder = fresh.link_files(artifact, tmp_path / "healed")
    assert (folder / "sub/b.bin").read_bytes() == data


@on_s3_too
def test_a_damaged_manifest_or_record_is_a_miss_not_a_crash(store: Store, tmp_path: Path) -> None:
    artifact = ingested(store, tmp_path)
    store.publish(record_for(artifact))
    store.backend.replace(blob_name(artifact.digest), b'{"kind": "texts"}')
    with pytest.raises(BlobLost):
        store.artifact(artifact.digest)
    store.backend.replace(f"records/format_prompts/{KEY}.json", b"{half")
    assert store.record("format_prompts", KEY) is None
    assert store.publish(record_for(artifact))["artifact"] == artifact.digest


@on_s3_too
def test_partial_state_shows_complete_steps_only(store: Store, tmp_path: Path) -> None:
    partial = store.partial("p" * 64)
    assert partial.newest(print) is None
    for step in (5, 10):
        partial.commit(step, folder_of(tmp_path, {"state.bin": f"{step}".encode(), "deep/x": b"x"}))
    store.backend.replace(f"partial/{'p' * 64}/step-000000015/state.bin", b"torn")
    found = partial.newest(print)
    assert found is not None
    step, folder = found
    assert step == 10
    assert (folder / "state.bin").read_bytes() == b"10"
    assert (folder / "deep/x").read_bytes() == b"x"
    partial.prune(1)
    assert partial.newest(print) is not None
    partial.prune(0)
    assert partial.newest(print) is None
    assert store.backend.names(f"partial/{'p' * 64}") == []


@pytest.mark.parametrize("harm", ["flip", "gone", "commit"])
def test_damaged_partial_state_gives_way_to_the_one_before(store: Store, tmp_path: Path, harm: str) -> None:
    partial, said = store.partial("d" * 64), list[str]()
    for step in (5, 10):
        partial.commit(step, folder_of(tmp_path, {"state.bin": f"{step}".encode(), "deep/x": b"x"}))
    newest = f"partial/{'d' * 64}/step-000000010"
    if harm == "gone":
        store.backend.remove(f"{newest}/deep/x")
    else:
        store.backend.replace(f"{newest}/{'state.bin' if harm == 'flip' else 'COMMIT'}", b"11")
    found = partial.newest(said.append)
    assert found is not None and found[0] == 5
    assert (found[1] / "state.bin").read_bytes() == b"5"
    what = {"flip": "state.bin", "gone": "x is gone", "commit": "COMMIT can't be read"}[harm]
    assert said == [f"the state of step 10 is damaged ({what}): it is in quarantine, and the one before it is used"]
    assert any("step-000000010/state.bin" in name for name in store.backend.names("quarantine"))
    assert partial.steps() == [5]
    partial.commit(10, folder_of(tmp_path, {"state.bin": b"10"}))
    assert partial.newest(said.append) is not None and len(said) == 1


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


def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "FORMAT.json").write_text('{"format": 99}')
    with pytest.raises(ConfigError, match="format"):
        Store(str(tmp_path), tmp_path / "home").prepare()


def test_an_unwritable_store_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=r"store\.root|disk"):
        Store(str(tmp_path / "file" / "store"), tmp_path / "home").prepare()


def test_a_bucket_that_is_not_there_is_an_error_not_a_miss(s3_endpoint: str, tmp_path: Path) -> None:
    with pytest.raises((StoreError, FileNotFoundError)):
        Store("s3://no-such-bucket-here/x", tmp_path / "home").prepare()


def test_too_little_disk_is_said_before_anything_runs(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), tmp_path / "home")
    with pytest.raises(StoreError, match="GB are free.*with 12.3 MB to spare"):
        store.check_space(10**18, 12_300_000)


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
    ("root", "disk", "fix"), [("store", "store", "store.root"), ("memory://full", "home", "TRNFLOW_HOME")]
)
def test_a_disk_without_room_is_named_and_so_is_what_chooses_another(
    tmp_path: Path, root: str, disk: str, fix: str
) -> None:
    """The files of a stage that runs lie on the home's disk if the store is remote."""
    where = root if "://" in root else str(tmp_path / root)
    with pytest.raises(StoreError, match=f"free on the disk of the {disk} ") as caught:
        Store(where, tmp_path / "home").check_space(1 << 60, 0)
    assert f"choose another {fix}" in caught.value.fix


def test_what_a_killed_writer_left_has_no_name(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for name in ("whole.json", ".0123"):
        (tmp_path / "store/records/s").mkdir(parents=True, exist_ok=True)
        (tmp_path / "store/records/s" / name).write_text("half")
    assert store.backend.names("records") == ["records/s/whole.json"]
