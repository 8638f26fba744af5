"""Stores that are newer, damaged, forged, full or read-only, and hosts whose clocks differ."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.ending import check_ending
from tests.acceptance.toy_runs import Machine
from tests.flows.runner.forks import forks, until
from tests.helpers.command_line import Shell
from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from tests.helpers.products import few
from tests.store.test_layout import FORGED, GOOD, manifest_of
from trnflow.tasks.errors import BlobLost, ConfigError, ReadOnlyStore, StoreError
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import blob_name, record_name
from trnflow.tasks.store.verify import verify

PROJECT = Path(__file__).resolve().parents[2]
ONE_STAGE = ("run", "mine.yaml", "--until", "load_data", "--direct", "tracking.enabled=false")


@pytest.fixture
def machine(tmp_path: Path, inline_calls: None) -> Machine:  # noqa: F811
    return Machine(str(tmp_path / "store"), tmp_path)


def why(machine: Machine, stage: str) -> str:
    return machine.plan().steps[stage].why


# A store of another format


@pytest.mark.parametrize(
    ("data", "says"),
    [(b'{"format": 3, "hash": "sha256"}', "has format"), (b'{"form', "damaged"), (b"[]", "damaged"), (b"", "damaged")],
)
def test_a_store_that_is_not_ours_is_refused_and_left_alone(machine: Machine, data: bytes, says: str) -> None:
    machine.run()
    store = machine.store()
    store.backend.replace("FORMAT.json", data)
    before = {entry.name: entry.size for entry in store.backend.entries("")}
    for attempt in (store.prepare, store.check, machine.run):
        with pytest.raises(ConfigError, match=says) as caught:
            attempt()
        assert caught.value.fix
    assert {entry.name: entry.size for entry in store.backend.entries("")} == before


def test_the_command_line_refuses_a_newer_store(trnflow: Shell) -> None:
    store = trnflow.folder / "newer"
    store.mkdir()
    (store / "FORMAT.json").write_text('{"format": 3, "hash": "sha256"}')
    for command in (ONE_STAGE, ("plan", "mine.yaml"), ("verify",)):
        said = trnflow.error(*command, code=2, TRNFLOW_STORE=str(store))
        assert 'has format {"format":3,"hash":"sha256"}' in said
        assert "upgrade trnflow" in said
    assert [path.name for path in store.iterdir()] == ["FORMAT.json"]


# Documents that are none


@pytest.mark.parametrize(
    "data", few([b"[]", b"\xff\xfe", b'{"artifact": "sha256:../x"}', b"", b"{", b"5", b'"text"', b"null", b"{}"], 3)
)
def test_documents_that_are_none_are_misses(machine: Machine, data: bytes) -> None:
    first = machine.run()
    store = machine.store()
    for kind in ("records", "attempts", "runs"):
        for name in store.backend.names(kind):
            store.backend.replace(name, data)
    store.backend.replace("runs/r.json", data)
    assert store.run("r") in (None, {}, {"artifact": "sha256:../x"})
    ran = machine.run()
    assert ran.actions == first.actions
    assert ran.steps["count"].metrics == {"total": 6}
    verify(store.backend, repair=True)
    check_ending(machine.store(), machine.actions)


# A forged manifest: its digest is right, and what it says is not to be done


def forge(store: Store, files: Any) -> str:
    """The digest of a manifest of these files, put into the store."""
    manifest = manifest_of(files)
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    store.backend.replace(blob_name(digest), manifest)
    return digest


@pytest.mark.parametrize("what", few(FORGED, 3))
def test_a_forged_manifest_is_a_miss_and_writes_nowhere(machine: Machine, what: str) -> None:
    """Each is refused for its reason in tests/store/test_layout.py."""
    step = machine.run().steps["sizes"]
    store = machine.store()
    store.backend.replace(blob_name(GOOD), b"evil")
    digest = forge(store, FORGED[what][0])
    name = record_name("sizes", str(step.key))
    store.backend.replace(name, json.dumps(json.loads(store.backend.read(name)) | {"artifact": digest}).encode())
    assert not verify(store.backend).ok
    with pytest.raises(BlobLost, match="was corrupt: "):
        store.artifact(digest)
    assert digest in why(machine, "sizes")
    ran = machine.run(least=2)
    assert ran.actions["sizes"] == "ran"
    assert ran.steps["count"].metrics == {"total": 5}
    assert not list(machine.folder.rglob("evil"))
    check_ending(machine.store(), lambda: machine.actions(least=2))


def test_a_blob_that_is_a_link_out_of_the_store_is_not_followed_into_a_result(machine: Machine) -> None:
    step = machine.run().steps["sizes"]
    assert step.artifact is not None
    secret = machine.folder / "secret"
    secret.write_text("9 9 9")  # of the same size as the true one
    blob = Path(machine.root) / blob_name(step.artifact.files[0].digest)
    blob.unlink()
    blob.symlink_to(secret)
    ran = machine.run(least=2)
    assert (ran.actions["sizes"], ran.steps["count"].metrics) == ("ran", {"total": 5})
    assert secret.read_text() == "9 9 9"
    check_ending(machine.store(), lambda: machine.actions(least=2))


@pytest.mark.parametrize("target", ["/etc", "nowhere", "."])
def test_a_stage_that_makes_a_link_to_a_folder_or_to_nothing_is_refused(machine: Machine, target: str) -> None:
    """It would be empty, or gone, in the artifact."""
    out = machine.folder / "out"
    out.mkdir()
    (out / "link").symlink_to(target)
    machine.store().prepare()
    with pytest.raises(StoreError, match="link, which is neither"):
        machine.store().ingest(out, "texts", {})


def test_a_link_to_a_file_is_kept_as_its_bytes(machine: Machine) -> None:
    out = machine.folder / "out"
    out.mkdir()
    (out / "link").symlink_to(machine.folder / "words.txt")
    machine.store().prepare()
    artifact = machine.store().ingest(out, "texts", {})
    machine.store().copy_files(artifact, machine.folder / "copy")
    assert (machine.folder / "copy/link").read_text() == "a bb ccc"
    assert not (machine.folder / "copy/link").is_symlink()
    assert (machine.folder / "words.txt").read_text() == "a bb ccc"


# Disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no small disk can be mounted here: {made.stderr}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


@pytest.mark.parametrize("home_too", [False, True], ids=["store", "store and home"])
def test_a_full_disk_fails_the_stage_and_keeps_what_is_finished(
    small_disk: Path, tmp_path: Path, home_too: bool
) -> None:
    machine = Machine(str(small_disk / "store"), small_disk / "m" if home_too else tmp_path / "m")
    machine.run()
    words = tmp_path / "many words.txt"
    words.write_text("many words " * 200_000)
    (machine.folder / "words.txt").unlink()
    (machine.folder / "words.txt").symlink_to(words)
    with pytest.raises(StoreError, match="No space left") as caught:
        machine.run()
    assert (caught.value.stage, caught.value.exit_code) == ("words", 1)
    assert "disk" in caught.value.fix
    (machine.folder / "words.txt").unlink()
    (machine.folder / "words.txt").write_text("a bb ccc")
    check_ending(machine.store(), machine.actions)  # what was finished hits, though the disk is small
    (machine.folder / "words.txt").unlink()
    (machine.folder / "words.txt").symlink_to(words)
    remount(small_disk, "size=40m")
    assert machine.run().steps["count"].metrics == {"total": 9 * 200_000}
    check_ending(machine.store(), machine.actions)


def test_a_disk_without_room_for_a_stage_is_refused_before_it_starts(trnflow: Shell, small_disk: Path) -> None:
    store = str(small_disk / "store")
    assert "MB are free" in trnflow.error(*ONE_STAGE, "store.min_free_gb=0.1", code=1, TRNFLOW_STORE=store)
    assert not list((small_disk / "store").glob("records/**/*.json"))
    assert trnflow(*ONE_STAGE, "store.min_free_gb=0", TRNFLOW_STORE=store).returncode == 0
    assert trnflow(*ONE_STAGE, "store.min_free_gb=0.1", TRNFLOW_STORE=store).returncode == 0  # a hit needs no room


def test_a_read_only_store_serves_its_hits_and_refuses_the_rest(small_disk: Path, tmp_path: Path) -> None:
    maker = Machine(str(small_disk / "store"), tmp_path / "maker")
    maker.run()
    reader = Machine(maker.root, tmp_path / "reader")
    remount(small_disk, "ro")
    started = len(maker.store().backend.names("attempts"))
    assert set(reader.actions().values()) == {"hit"}
    with pytest.raises(ReadOnlyStore, match="can only be read") as caught:
        reader.run(least=2)
    assert caught.value.stage == "count"
    assert not (reader.folder / "home/work").exists(), "the stage was begun"
    remount(small_disk, "rw")
    assert len(maker.store().backend.names("attempts")) == started
    assert maker.store().backend.names("leases") == []
    check_ending(reader.store(), reader.actions)


class TurnsReadOnly(Reader):
    """Makes a disk read-only when the stage `count` has begun."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "stage_begun" and event["stage"] == "count":
            remount(self._disk, "ro")


def test_a_store_that_turns_read_only_in_mid_run_keeps_what_is_finished(small_disk: Path, tmp_path: Path) -> None:
    # the lease of the stage that failed can't be removed: the next run waits until it expires
    machine = Machine(str(small_disk / "store"), tmp_path / "m", ("store.lease_ttl_seconds=4",))
    with pytest.raises(ReadOnlyStore, match="can only be read") as caught:
        machine.run(0, TurnsReadOnly(small_disk))
    assert caught.value.stage == "count"
    remount(small_disk, "rw")
    assert verify(machine.store().backend).ok
    ran = machine.run()
    assert ran.actions == {"words": "hit", "sizes": "hit", "warm_up": "hit", "count": "ran"}
    check_ending(machine.store(), machine.actions)


def test_damage_in_a_read_only_store_is_a_miss_all_the_same(small_disk: Path, tmp_path: Path) -> None:
    machine = Machine(str(small_disk / "store"), tmp_path / "m")
    step = machine.run().steps["sizes"]
    machine.store().backend.replace(record_name("sizes", str(step.key)), b"{half")
    remount(small_disk, "ro")
    with pytest.raises(ReadOnlyStore):
        machine.run()
    remount(small_disk, "rw")
    assert machine.actions()["sizes"] == "ran"
    check_ending(machine.store(), machine.actions)


def test_the_command_line_on_a_read_only_store(trnflow: Shell, small_disk: Path) -> None:
    store, home = str(small_disk / "store"), str(trnflow.folder / "another home")
    assert trnflow(*ONE_STAGE, "store.min_free_gb=0", TRNFLOW_STORE=store).returncode == 0
    remount(small_disk, "ro")
    hit = trnflow(*ONE_STAGE, TRNFLOW_STORE=store, TRNFLOW_HOME=home)
    assert hit.returncode == 0, hit.stderr
    assert "nothing to do" in hit.stdout
    assert "can only be read: this run is not on record" in hit.stdout
    said = trnflow.error(*ONE_STAGE, "data.limit=5", code=1, TRNFLOW_STORE=store, TRNFLOW_HOME=home)
    assert "error in load_data: no permission for creating" in said
    assert "can only be read" in said
    assert trnflow("verify", TRNFLOW_STORE=store).returncode == 0


# Clocks

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(id, now);
    if (id == CLOCK_REALTIME) now->tv_sec += atol(getenv("SKEW"));
    return done;
}
"""
DAY = 86400


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that sets the wall clock of a process that loads it, and of it alone."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to set a process's clock with")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    built = ["cc", "-shared", "-fPIC", "-o", str(folder / "shim.so"), str(folder / "shim.c"), "-ldl"]
    subprocess.run(built, check=True)
    return folder / "shim.so"


def on_host(shim: Path, skew: int, *command: str) -> str:
    """What a process says whose clock is `skew` seconds ahead."""
    environ = os.environ | {"LD_PRELOAD": str(shim), "SKEW": str(skew)}
    done = subprocess.run([sys.executable, *command], cwd=PROJECT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("days", few([366, 3], 1))
def test_hosts_whose_clocks_differ_share_a_store(days: int, tmp_path: Path, shim: Path) -> None:
    root = str(tmp_path / "store")
    assert int(on_host(shim, 400 * DAY, "-c", "import time; print(int(time.time()))")) > 1_700_000_000 + 400 * DAY

    def run(host: str, skew: int, least: int) -> dict[str, str]:
        return dict(
            json.loads(on_host(shim, skew, "-m", "tests.acceptance.machine", root, str(tmp_path / host), str(least)))
        )

    assert set(run("ahead", days * DAY, 0).values()) == {"ran"}
    assert set(run("behind", -days * DAY, 0).values()) == {"hit"}
    assert run("behind", -days * DAY, 2)["count"] == "ran"
    assert set(run("ahead", days * DAY, 2).values()) == {"hit"}
    here = Machine(root, tmp_path / "here")
    for least in (0, 2):
        check_ending(here.store(), lambda least=least: here.actions(least))


def test_a_holder_whose_clock_is_days_behind_costs_work_at_worst(
    tmp_path: Path, shim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own words it was silent for days, so another may begin the same; what counts is made once."""
    root = str(tmp_path / "store")
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("SKEW", str(-3 * DAY))
    with forks(tmp_path, root) as behind:
        monkeypatch.delenv("LD_PRELOAD")
        with forks(tmp_path, root) as here:
            behind.start("first", gate="gate")
            until(behind.executions)
            here.start("second", gate="gate")
            until(lambda: "waits for" in here.said("second") or len(here.executions()) == 2)
            here.open("gate")
            first, second = behind.result("first"), here.result("second")
            assert first["digests"] == second["digests"]
            assert first["notes"] == second["notes"] == []
            (record,) = here.store().records("once")
            assert record["artifact"] == first["digests"]["once"]
            here.start("third")
            check_ending(
                here.store(), lambda: {name: did for name, (did, _) in here.result("third")["outcomes"].items()}
            )
