"""Leases: one holder, takeover only from the dead and the silent, and a holder that was superseded finds out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.helpers.waiting import wait_for
from tests.store.conftest import on_s3_too
from trnflow.tasks.store import Store, lease
from trnflow.tasks.store.backend import Backend
from trnflow.tasks.store.lease import Lease, LeaseLost, Waiter, newest_holder
from trnflow.tasks.system.process import ATTEMPT, Process, read_tag, this_process

KEY = "k" * 64
LONG = 1000.0
SHORT = 0.05


def waiter(backend: Backend, ttl: float = LONG, key: str = KEY) -> Waiter:
    return Waiter(backend, key, run="r", attempt="a", ttl=ttl)


def taken(backend: Backend, ttl: float = LONG) -> Lease:
    lease = waiter(backend, ttl).acquire()
    assert lease is not None
    return lease


def awaited(turn: Waiter) -> Lease:
    lease: Lease = wait_for(turn.acquire, 60, 0.01)
    return lease


def left_by(backend: Backend, process: Process, ttl: float = LONG, attempt: str = "a", since: str = "") -> None:
    """A lease as a process leaves it that did not release it."""
    taken(backend, ttl)
    name = f"leases/{KEY}/1.json"
    document = json.loads(backend.read(name)) | {"process": process._asdict(), "attempt": attempt}
    backend.replace(name, json.dumps(document | ({"since": since} if since else {})).encode())


def elsewhere() -> Process:
    return Process("another-machine", "another-boot", "1", 1, 1)


def ended() -> Process:
    """A process that was: its pid is free, or another's by now."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return this_process()._replace(pid=child.pid, start=1)


def test_a_damaged_lease_expires_like_any_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "FALLBACK_TTL", SHORT)
    taken(store.backend)
    store.backend.replace(f"leases/{KEY}/1.json", b"{}")
    with awaited(waiter(store.backend)) as mine:
        mine.check()


def test_one_holds_and_the_next_gets_it_when_it_is_released(store: Store) -> None:
    backend = store.backend
    second = waiter(backend)
    with taken(backend):
        assert second.acquire() is None
        assert second.holder is not None
        assert (second.holder.process, second.holder.run, second.holder.fence) == (this_process(), "r", 1)
        assert f"pid {os.getpid()}" in str(second.holder)
    with awaited(second):
        assert waiter(backend).acquire() is None
    assert backend.names("leases") == []
    assert backend.folders("leases") == []


@on_s3_too
def test_of_many_at_once_one_gets_it_also_at_a_takeover(store: Store) -> None:
    for leave in (False, True):
        if leave:
            left_by(store.backend, ended())
        barrier = threading.Barrier(8)

        def race(_: int, barrier: threading.Barrier = barrier) -> Lease | None:
            barrier.wait()
            return waiter(store.backend).acquire()

        with ThreadPoolExecutor(8) as pool:
            (won,) = filter(None, pool.map(race, range(8)))
        won.check()
        won.release()
        assert store.backend.names("leases") == []


def test_a_silent_holder_of_another_machine_is_over_after_its_ttl_and_the_fence_grows(store: Store) -> None:
    left_by(store.backend, elsewhere(), SHORT)
    turn = waiter(store.backend)
    assert turn.acquire() is None  # it may live: it was seen only once
    lease = awaited(turn)
    assert store.backend.names(f"leases/{KEY}") == [f"leases/{KEY}/1.json", f"leases/{KEY}/2.json"]
    lease.release()
    assert store.backend.names("leases") == []


def test_a_patient_waiter_leaves_the_lease_to_a_process_of_this_machine_that_lives(store: Store) -> None:
    def looks_twice(turn: Waiter) -> Lease | None:
        assert turn.acquire() is None
        time.sleep(2 * SHORT)
        return turn.acquire()

    patient = partial(Waiter, store.backend, KEY, run="r", attempt="a", ttl=LONG, patient=True)
    left_by(store.backend, this_process(), SHORT)
    assert looks_twice(patient()) is None
    lease = looks_twice(waiter(store.backend))
    assert lease is not None
    lease.release()
    left_by(store.backend, elsewhere(), SHORT)
    lease = looks_twice(patient())
    assert lease is not None
    lease.release()


def test_a_holder_that_beats_is_never_over_however_slow_the_waiter_looks(store: Store) -> None:
    left_by(store.backend, elsewhere(), SHORT)
    turn = waiter(store.backend)
    token = json.loads(store.backend.read(f"leases/{KEY}/1.json"))["token"]
    for count in range(5):
        store.backend.replace(f"leases/{KEY}/1.{token}", json.dumps({"beat": count}).encode())
        assert turn.acquire() is None
        time.sleep(SHORT)
    awaited(turn).release()


class Patient(Waiter):
    """A waiter for a lease of this process that is released before its third look."""

    def __init__(self, backend: Backend, held: Lease) -> None:
        super().__init__(backend, KEY, run="r", attempt="a", ttl=LONG)
        self.held, self.looks = held, 0

    def acquire(self) -> Lease | None:
        self.looks += 1
        if self.looks == 3:
            self.held.release()
        return super().acquire()


def test_who_waits_is_told_the_holder_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "WATCH_SECONDS", 0.01)
    held, told = taken(store.backend), []
    assert waiter(store.backend).acquire_watching(tell=told.append) is None and told == []
    turn = Patient(store.backend, held)
    mine = turn.acquire_watching(wait=True, tell=told.append)
    assert mine is not None and turn.looks == 3
    assert [one.process for one in told] == [this_process()]
    mine.release()


def test_the_lease_by_which_another_process_removes_a_dead_one_s_is_no_holder(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a nightly retrain would end as unchanged because another command tidies what a killed one left."""
    monkeypatch.setattr(lease, "WATCH_SECONDS", 0.01)
    swept = Waiter(store.backend, KEY, run=lease.SWEEP, attempt=lease.SWEEP, ttl=LONG).acquire()
    assert swept is not None
    told: list[object] = []
    turn = Patient(store.backend, swept)
    mine = turn.acquire_watching(tell=told.append)
    assert mine is not None and turn.looks == 3 and told == []
    mine.release()


def test_a_held_lease_beats(store: Store) -> None:
    with taken(store.backend, 0.15):
        seen = set()
        deadline = time.monotonic() + 60
        while len(seen) < 3 and time.monotonic() < deadline:
            holder = newest_holder(store.backend, KEY)
            assert holder is not None
            seen.add(holder.beat)
        assert len(seen) >= 3
    assert store.backend.names("leases") == []


def test_the_lease_of_a_dead_process_is_taken_at_once(store: Store) -> None:
    another = this_process()._replace(start=1)  # its pid is another's by now
    for process in (ended(), another, this_process()._replace(boot="an earlier boot")):
        left_by(store.backend, process)
        taken(store.backend).release()
    left_by(store.backend, elsewhere(), since="2026-01-01T00:00:00Z")  # silent for long by its own clock
    taken(store.backend).release()
    assert store.backend.names("leases") == []


def test_a_dead_run_whose_stage_still_saves_holds_until_that_has_ended(tmp_path: Path) -> None:
    store = Store(str(tmp_path), tmp_path / "home")
    attempt = f"attempt-{os.getpid()}"
    left_by(store.backend, ended(), attempt=attempt)
    child = subprocess.Popen(["sleep", "600"], env=os.environ | {ATTEMPT: attempt})
    try:
        assert waiter(store.backend).acquire() is None
    finally:
        child.kill()
        child.wait()
    taken(store.backend).release()


@on_s3_too
def test_a_superseded_holder_finds_out_and_leaves_the_new_one_alone(store: Store) -> None:
    old = taken(store.backend, SHORT)  # never beats: it is paused
    old.check()
    new = awaited(waiter(store.backend))
    with pytest.raises(LeaseLost, match=f"pid {os.getpid()} .*took over"):
        old.check()
    with pytest.raises(LeaseLost):
        old.raise_if_superseded()
    old.release()
    new.check()
    new.release()
    with pytest.raises(LeaseLost, match="another run took over"):
        old.check()
    assert store.backend.names("leases") == []


def test_a_release_leaves_a_lease_alone_that_came_meanwhile(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = taken(store.backend)
    seen = newest_holder(store.backend, KEY)
    store.backend.remove(f"leases/{KEY}/1.{seen.token}")
    store.backend.replace(f"leases/{KEY}/2.json", json.dumps({"token": "other"}).encode())
    store.backend.replace(f"leases/{KEY}/2.other", b"1")
    monkeypatch.setattr(lease, "newest_holder", lambda *_: seen)  # what it saw just before
    first.release()
    assert store.backend.names(f"leases/{KEY}") == [f"leases/{KEY}/2.json", f"leases/{KEY}/2.other"]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_holder_that_wakes_hears_of_it_by_its_heartbeat(store: Store) -> None:
    old = taken(store.backend, SHORT)
    new = awaited(waiter(store.backend))
    with old, pytest.raises(LeaseLost):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            old.raise_if_superseded()
            time.sleep(0.01)
    new.check()
    new.release()


def test_sweeping_removes_what_the_dead_left_and_nothing_else(store: Store) -> None:
    left_by(store.backend, ended())
    store.backend.replace(f"leases/{'o' * 64}/1.orphan", b"{}")
    living = waiter(store.backend, key="l" * 64).acquire()
    assert living is not None
    store.sweep_leases()
    assert store.backend.folders("leases") == ["l" * 64]
    living.check()
    living.release()
    assert store.backend.names("leases") == []


def test_an_empty_folder_and_what_was_written_aside_are_swept(tmp_path: Path) -> None:
    store = Store(str(tmp_path), tmp_path / "home")
    (tmp_path / "leases" / KEY).mkdir(parents=True)
    (tmp_path / "leases" / KEY / ".aside").write_text("half")
    store.sweep_leases()
    assert list((tmp_path / "leases").iterdir()) == []


@pytest.mark.parametrize("text", ["", "{half", "[]", '{"token": 1}', '{"process": {"pid": "x"}, "ttl": "soon"}'])
def test_a_lease_that_can_not_be_read_is_waited_for(store: Store, text: str) -> None:
    store.backend.replace(f"leases/{KEY}/3.json", text.encode())
    turn = waiter(store.backend)
    assert turn.acquire() is None
    assert turn.holder is not None and turn.holder.fence == 3


def test_strange_names_are_no_leases(store: Store) -> None:
    for name in ("07.json", "x.json", "-1.json", "1.tmp", "٣.json"):
        store.backend.replace(f"leases/{KEY}/{name}", b"{}")
    taken(store.backend).release()
    assert store.backend.names("leases") == []


def test_a_process_is_known_by_its_tag() -> None:
    me = this_process()
    assert read_tag(me.tag) == me
    assert not me.is_dead()
    assert read_tag("999999999-dead") is None
    assert read_tag(ended().tag).is_dead()  # type: ignore[union-attr]
    assert not elsewhere().is_dead()


def test_writers_and_tidying_do_not_meet_in_an_error(tmp_path: Path) -> None:
    """A folder removed under the writer's hands is made again."""
    backend = Store(str(tmp_path), tmp_path / "home").backend
    left = threading.Event()

    def tidy() -> None:
        while not left.is_set():
            backend.remove_empty("leases/x")

    thread = threading.Thread(target=tidy)
    thread.start()
    try:
        for number in range(30):
            assert backend.create(f"leases/x/{number}.json", b"{}")
            assert not backend.create(f"leases/x/{number}.json", b"{}")
            backend.remove(f"leases/x/{number}.json")
    finally:
        left.set()
        thread.join()


def test_what_a_lease_says_beyond_the_greatest_ttl_does_not_count(store: Store) -> None:
    """One of 1e308 s, or of none, held its key for good."""
    for ttl, counts in (
        (1e308, lease.LONGEST_TTL),
        (60.0, 60.0),
        (-1.0, lease.FALLBACK_TTL),
        ("60", lease.FALLBACK_TTL),
    ):
        left_by(store.backend, elsewhere())
        name = f"leases/{KEY}/1.json"
        store.backend.replace(name, json.dumps(json.loads(store.backend.read(name)) | {"ttl": ttl}).encode())
        found = lease.newest_holder(store.backend, KEY)
        assert found is not None and found.ttl == counts
        store.backend.remove(f"leases/{KEY}")
