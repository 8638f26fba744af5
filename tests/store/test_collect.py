"""Garbage collection: what is reachable stays, what is not goes; beside running writers nothing that lives is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import stores
from tests.helpers.stores import new_store, recorded
from tests.store.conftest import on_s3_too
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import BlobLost, StoreError
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.keys.hash_cache import sha256_bytes
from trnflow.tasks.store import Store
from trnflow.tasks.store.backend import Entry
from trnflow.tasks.store.garbage.collect import Collected, collect
from trnflow.tasks.store.garbage.mark import Policy, View, mark
from trnflow.tasks.store.garbage.pins import add_pin, remove_pin
from trnflow.tasks.store.garbage.trash import into_trash
from trnflow.tasks.store.layout import blob_name, record_name
from trnflow.tasks.store.verify import verify

NOW = 1_000_000.0
OLD, YOUNG = NOW - 1000, NOW - 10
AT_ONCE = Policy(keep_last=1, grace=0.0)


def made(store: Store, tmp_path: Path, name: str, files: dict[str, bytes], **more: Any) -> Artifact:
    """An artifact, with a record under a key made of `name`."""
    folder = tmp_path / "making"
    folder.mkdir()
    for path, data in files.items():
        (folder / path).write_bytes(data)
    artifact = store.ingest(folder, "texts", {"name": name})
    shutil.rmtree(folder)
    store.publish(record_of(name, artifact.digest))
    return artifact


def record_of(name: str, artifact: str) -> dict[str, Any]:
    return stores.record_of(artifact, f"2026-{name}", name=name)


def run_of(store: Store, run: str, recipe: str, *records: dict[str, Any], outcome: str = "completed") -> None:
    stages = [recorded("s", record["key"], record["artifact"]) for record in records]
    store.write_run(run, {"recipe": recipe, "outcome": outcome, "stages": stages})


def names(store: Store) -> set[str]:
    return {entry.name for kind in ("records", "runs", "attempts", "blobs") for entry in store.backend.entries(kind)}


def collected(store: Store, policy: Policy = AT_ONCE, *, yes: bool = True) -> Collected:
    return collect(store.backend, policy, yes=yes)


def test_the_newest_run_of_each_recipe_stays_with_all_it_names(store: Store, tmp_path: Path) -> None:
    old, new = (made(store, tmp_path, name, {"x": name.encode(), "both": b"shared"}) for name in ("old", "new"))
    other = made(store, tmp_path, "other", {"x": b"other"})
    run_of(store, "20260101T000000Z-a", "one", record_of("old", old.digest))
    run_of(store, "20260102T000000Z-a", "one", record_of("new", new.digest))
    run_of(store, "20260101T000000Z-b", "two", record_of("other", other.digest))
    wait_a_tick(store)
    assert collected(store).swept.files == {"records": 1, "blobs": 2, "runs": 1}
    assert store.missing(new) is None
    assert store.missing(other) is None
    assert {name for name in names(store) if name.startswith("runs")} == {
        "runs/20260102T000000Z-a.json",
        "runs/20260101T000000Z-b.json",
    }
    assert verify(store.backend).ok
    assert verify(store.backend).unreferenced == 0


def test_failed_runs_do_not_push_out_the_newest_completed_run(store: Store, tmp_path: Path) -> None:
    good, bad = (made(store, tmp_path, name, {"x": name.encode()}) for name in ("good", "bad"))
    run_of(store, "20260101T000000Z-a", "one", record_of("good", good.digest))
    run_of(store, "20260102T000000Z-a", "one", record_of("bad", bad.digest), outcome="failed")
    wait_a_tick(store)
    assert not collected(store).swept.files
    assert store.missing(good) is None


def wait_a_tick(store: Store) -> None:
    """Object stores tell times to the second: until what was written is older than a grace of none."""
    store.backend.replace("trash/clock", b"")
    while not store.backend.local and store.root.startswith("s3") and _clock(store) <= _newest(store):
        time.sleep(0.2)
        store.backend.replace("trash/clock", b"")


def _clock(store: Store) -> float:
    return next(entry.time for entry in store.backend.entries("trash") if entry.name == "trash/clock")


def _newest(store: Store) -> float:
    return max(entry.time for kind in ("records", "runs", "blobs") for entry in store.backend.entries(kind))


def test_a_dry_run_touches_nothing_and_names_the_bytes_that_become_free(store: Store, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        artifact = made(store, tmp_path, name, {"data": name.encode() * 1000})
        run_of(store, f"20260101T00000{len(name)}Z-{name}", "recipe", record_of(name, artifact.digest))
    wait_a_tick(store)
    before = {entry.name: entry.size for entry in store.backend.entries("")}
    promised = collected(store, yes=False)
    assert {entry.name: entry.size for entry in store.backend.entries("")} == before
    assert promised.swept.bytes.total() > 7000
    assert collected(store).to_json() == promised.to_json() | {"dry_run": False}
    wait_a_tick(store)
    assert collected(store).purged.bytes.total() == promised.swept.bytes.total()
    after = sum(entry.size for entry in store.backend.entries(""))
    assert sum(before.values()) - after == promised.swept.bytes.total()


def test_within_the_grace_period_nothing_goes_whoever_refers_to_it(store: Store, tmp_path: Path) -> None:
    made(store, tmp_path, "young", {"x": b"y"})
    before = names(store)
    assert collected(store, Policy(keep_last=0, grace=3600)).swept.files == {}
    assert names(store) == before


def test_a_pin_keeps_an_artifact_or_a_run_until_it_is_released(store: Store, tmp_path: Path) -> None:
    pinned, in_run = (made(store, tmp_path, name, {"x": name.encode()}) for name in ("pinned", "in run"))
    run_of(store, "20260101T000000Z-a", "one", record_of("in run", in_run.digest))
    maker = {"stage": "s", "key": record_of("pinned", pinned.digest)["key"]}
    add_pin(store.backend, "best", {"artifact": pinned.digest, "records": [maker]})
    add_pin(store.backend, "paper", {"run": "20260101T000000Z-a"})
    wait_a_tick(store)
    keep_none = Policy(keep_last=0, grace=0.0)
    assert collected(store, keep_none).swept.files == {}
    assert remove_pin(store.backend, "best")
    assert not remove_pin(store.backend, "best")
    assert collected(store, keep_none).swept.files == {"records": 1, "blobs": 2}
    assert store.missing(in_run) is None


def test_an_attempt_at_work_keeps_what_its_run_has_come_by(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    record = record_of("held", made(store, tmp_path, "held", {"x": b"held"}).digest)
    at_work = {"outcome": "running", "host": os.uname().nodename, "pid": os.getpid(), "run": "r"}
    holds = [{"stage": "s", "key": record["key"]}]
    store.write_attempt("b" * 64, "a1", at_work | {"holds": holds})
    store.backend.replace(f"partial/{'b' * 64}/step-1/COMMIT", b"")
    assert collected(store, Policy(keep_last=0, grace=0.0)).swept.files == {}
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    store.write_attempt("b" * 64, "a1", at_work | {"holds": holds, "pid": int(gone.stdout)})
    swept = collected(store, Policy(keep_last=0, grace=0.0)).swept.files
    assert swept == {"attempts": 1, "records": 1, "blobs": 2, "partial": 1}


def test_a_lease_keeps_its_key(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    key = record_of("leased", made(store, tmp_path, "leased", {"x": b"x"}).digest)["key"]
    store.backend.create(f"leases/{key}/1.json", b"{}")
    store.backend.replace(f"partial/{key}/step-1/COMMIT", b"")
    assert collected(store, Policy(keep_last=0, grace=0.0)).swept.files == {}
    store.backend.remove(f"leases/{key}")
    assert collected(store, Policy(keep_last=0, grace=0.0)).swept.files == {"records": 1, "blobs": 2, "partial": 1}


def test_what_killed_writers_left_aside_goes(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    aside = tmp_path / "store/blobs/sha256/ab/.0123"
    aside.parent.mkdir(parents=True)
    aside.write_bytes(b"half")
    assert collected(store).swept.bytes == {"unfinished": 4}
    assert not aside.exists()


@pytest.mark.parametrize("name", ["roots/pins/p.json", "runs/r.json", "attempts/k/a.json"])
def test_a_root_that_cannot_be_read_stops_it_before_anything_moves(tmp_path: Path, name: str) -> None:
    store = new_store(tmp_path)
    made(store, tmp_path, "garbage", {"x": b"y"})
    store.backend.replace(name, b'{"torn":')
    before = names(store)
    for yes in (False, True):
        with pytest.raises(StoreError, match=name):
            collected(store, Policy(keep_last=1, grace=0.0), yes=yes)
    assert names(store) == before


def test_a_pin_on_what_is_gone_stops_it(store: Store) -> None:
    store.backend.create("roots/models/m.json", json.dumps({"artifact": f"sha256:{'0' * 64}"}).encode())
    with pytest.raises(StoreError, match="roots/models/m"):
        collected(store)


@on_s3_too
def test_what_a_run_writes_again_while_it_lies_in_the_trash_comes_back(store: Store, tmp_path: Path) -> None:
    """A collection between the look at a blob that exists and the record that names it."""
    artifact = made(store, tmp_path, "one", {"x": b"x", "y": b"y"})
    record = record_of("one", artifact.digest)
    for known in (artifact, None):  # of a record alone its artifact comes back, too
        wait_a_tick(store)
        assert collected(store, Policy(keep_last=0, grace=0.0)).swept.files == {"records": 1, "blobs": 3}
        store.restore([record], known)
        assert store.missing(artifact) is None
        assert store.record("s", record["key"]) == record
        assert verify(store.backend).ok


def test_a_run_whose_results_are_gone_for_good_is_told_so(store: Store, tmp_path: Path) -> None:
    artifact = made(store, tmp_path, "one", {"x": b"x"})
    store.backend.remove(blob_name(artifact.files[0].digest))
    with pytest.raises(BlobLost) as caught:
        store.restore([], artifact)
    assert caught.value.digest == artifact.files[0].digest


def test_a_killed_collection_is_put_right_by_the_next(store: Store, tmp_path: Path) -> None:
    """As if killed between its sweep and its last look: what a run came to hold meanwhile lies in the trash."""
    artifact = made(store, tmp_path, "one", {"x": b"x"})
    record = record_of("one", artifact.digest)
    for name in (record_name("s", record["key"]), blob_name(artifact.digest), blob_name(artifact.files[0].digest)):
        store.backend.move(name, into_trash(name, time.time()))
    store.backend.replace("runs/r.json", json.dumps({"recipe": "r", "stages": [recorded("s", record["key"])]}).encode())
    assert len(collected(store, Policy(keep_last=1, grace=3600)).restored) == 3
    assert store.record("s", record["key"]) == record
    assert verify(store.backend).ok


def test_a_record_published_anew_is_not_overwritten_from_the_trash(store: Store, tmp_path: Path) -> None:
    record = record_of("one", made(store, tmp_path, "one", {"x": b"x"}).digest)
    name = record_name("s", record["key"])
    store.backend.move(name, into_trash(name, time.time()))
    newer = record | {"created": "later"}
    assert store.publish(newer) == newer
    store.restore([record])
    assert store.record("s", record["key"]) == newer


def test_what_was_replaced_or_quarantined_goes_for_good_a_grace_period_later(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    record = record_of("one", made(store, tmp_path, "one", {"x": b"x"}).digest)
    store.publish(record | {"created": "forced"}, replace=True)
    store.backend.replace(record_name("s", record["key"]), b"{torn")
    assert store.record("s", record["key"]) is None
    time.sleep(0.02)  # the clock of files is a tick behind the one that names what is in quarantine
    aside = [entry for kind in ("trash", "quarantine") for entry in store.backend.entries(kind)]
    assert len(aside) == 2
    assert collected(store, Policy(grace=3600)).purged.files == {}
    assert collected(store).purged.files == {"quarantine": 1, "trash": 1}
    assert not any(store.backend.size(entry.name) for entry in aside)


# Marking, as a property: any store, any references


class World:
    """Artifacts of random blobs, records of random artifacts, runs and pins of random records; each old or young."""

    def __init__(self, data: st.DataObject) -> None:
        self.bytes: dict[str, bytes] = {}
        self.time: dict[str, float] = {}
        self.data = data
        blobs = [self.put(f"blob {n}".encode()) for n in range(data.draw(st.integers(1, 6)))]
        self.manifests = {}
        for n in range(data.draw(st.integers(1, 5))):
            files = data.draw(st.lists(st.sampled_from(blobs), max_size=4, unique=True))
            manifest = canonical({"kind": f"k{n}", "meta": {}, "files": [[f, 6, f] for f in files]}).encode()
            self.manifests[self.put(manifest)] = files
        artifacts = list(self.manifests)
        self.records = {
            record_name("s", f"{n:064x}"): data.draw(st.sampled_from(artifacts))
            for n in range(data.draw(st.integers(0, 6)))
        }
        for name, artifact in self.records.items():
            key = name.split("/")[2].removesuffix(".json")
            self.add(name, {"key": key, "artifact": artifact, "document": {"inputs": {"artifact": artifacts[0]}}})
        self.runs = {
            f"runs/2026010{n}T000000Z-x.json": data.draw(st.lists(st.sampled_from(sorted(self.records)), max_size=3))
            for n in range(data.draw(st.integers(0, 5)) if self.records else 0)
        }
        for name, records in self.runs.items():
            stages = [{"key": record.split("/")[2].removesuffix(".json")} for record in records]
            self.add(name, {"recipe": "r", "outcome": "completed", "stages": stages})
        self.pinned = data.draw(st.lists(st.sampled_from(artifacts), max_size=2, unique=True))
        for artifact in self.pinned:
            self.add(f"roots/pins/{artifact[7:15]}.json", {"artifact": artifact})

    def put(self, data: bytes) -> str:
        digest = sha256_bytes(data)
        self.place(blob_name(digest), data)
        return digest

    def add(self, name: str, document: dict[str, Any]) -> None:
        self.place(name, json.dumps(document).encode())

    def place(self, name: str, data: bytes) -> None:
        self.bytes[name] = data
        self.time[name] = self.data.draw(st.sampled_from([OLD, YOUNG]))

    def view(self, trashed: set[str]) -> View:
        entries = {name: Entry(name, len(data), self.time[name]) for name, data in self.bytes.items()}
        return View(
            {name: entry for name, entry in entries.items() if name not in trashed},
            {name: entry for name, entry in entries.items() if name in trashed},
            lambda name: self.bytes[name],
        )

    def reachable(self, keep_last: int, trashed: set[str]) -> set[str]:
        young = {name for name, at in self.time.items() if at == YOUNG and name not in trashed}
        newest = sorted(set(self.runs), reverse=True)
        results: list[list[str]] = []
        runs = {name for name in young if name in self.runs}
        for name in newest:
            result = sorted(self.runs[name])
            if result not in results:
                results.append(result)
            if len(results) > keep_last:
                break
            runs.add(name)
        records = {record for run in runs for record in self.runs[run]} | (young & set(self.records))
        artifacts = {self.records[record] for record in records} | set(self.pinned)
        files = {digest for artifact in artifacts for digest in (artifact, *self.manifests[artifact])}
        roots = {name for name in self.bytes if name.startswith("roots/")}
        return roots | young | runs | records | {blob_name(digest) for digest in files}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_is_reachable_or_young_is_marked_and_nothing_else(data: st.DataObject) -> None:
    world = World(data)
    hidden = [name for name in world.bytes if name.startswith(("records/", "blobs/"))]
    trashed = set(data.draw(st.lists(st.sampled_from(hidden), max_size=4)))
    keep_last = data.draw(st.integers(0, 3))
    kept = mark(world.view(trashed), Policy(keep_last=keep_last, grace=100.0), NOW)
    assert set(kept) == world.reachable(keep_last, trashed)
