"""5. Many starters on one key, killed and paused holders: real processes on a local store and on an S3 server."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.acceptance.ending import check_ending
from tests.flows.runner.forks import Forks, OnceConfig, nothing_left, once, until
from tests.helpers.products import sampled
from tests.helpers.runs import context, run_stage
from tests.helpers.s3_server import s3_endpoint, s3_root  # noqa: F401 - fixtures
from tests.helpers.stores import new_store
from tests.launch.processes import alive

SHORT = 1.0


def outcome(starters: Forks, name: str) -> list[str]:
    return list(starters.result(name)["outcomes"]["once"])


def check_end(starters: Forks, stage: str = "once") -> None:
    """No lease, no folder of work; and as every scenario ends."""
    assert nothing_left(starters)

    def again() -> dict[str, str]:
        starters.start("at the end", stage=stage)
        return {name: action for name, (action, _) in starters.result("at the end")["outcomes"].items()}

    check_ending(starters.store(), again)


@pytest.mark.parametrize("starters", ["local", "s3"], indirect=True)
def test_of_eight_starters_one_runs_and_seven_adopt(starters: Forks) -> None:
    names = [f"r{number}" for number in range(8)]
    pids = {starters.start(name, gate="gate"): name for name in names}
    until(lambda: sum("waits for" in starters.said(name) for name in names) == 7)
    starters.open("gate")
    results = {name: outcome(starters, name) for name in names}
    (winner,) = starters.executions()
    assert results.pop(pids[winner]) == ["ran", ""]
    assert list(results.values()) == [["hit", f"made meanwhile by {socket.gethostname()} pid {winner}"]] * 7
    assert len({starters.result(name)["digests"]["once"] for name in names}) == 1
    for name in results:
        assert starters.said(name).count("waits for") == 1
        assert f"pid {winner} (run {pids[winner]}, since 2" in starters.said(name)
        assert "started" not in starters.said(name)
    check_end(starters)


def test_a_killed_holder_is_taken_over_from(starters: Forks) -> None:
    first = starters.start("first", gate="gate")
    until(starters.executions)
    second = starters.start("second", gate="gate")
    until(lambda: "waits for" in starters.said("second"))
    os.kill(first, signal.SIGKILL)
    until(lambda: len(starters.executions()) == 2)
    starters.open("gate")
    assert outcome(starters, "second") == ["ran", ""]
    assert starters.executions() == [first, second]
    assert nothing_left(starters)


def test_a_killed_run_is_taken_over_from_when_its_stage_has_saved_and_that_goes_on(starters: Forks) -> None:
    first = starters.start("first", stage="apart", ttl=600)
    until(starters.journal.exists)
    os.kill(first, signal.SIGKILL)
    starters.start("second", stage="apart", ttl=600)
    assert starters.result("second")["outcomes"]["apart"] == ["ran", ""]
    assert starters.journal.read_text() == "begins at step 0\nsaved\nbegins at step 7\n"
    assert starters.store().backend.names("partial") == []
    check_end(starters, "apart")


@sampled("starters, published", ["local", "s3"], [True, False], indirect=["starters"])
def test_a_paused_holder_that_wakes_adopts_what_took_over_published(starters: Forks, published: bool) -> None:
    """It wakes after, or before, the new holder has published; its own bytes differ, and do not count."""
    first = starters.start("first", gate="gate 1", salt="x", ttl=SHORT)
    until(starters.executions)
    second = starters.start("second", gate="gate 2", ttl=SHORT)
    until(lambda: "waits for" in starters.said("second"))
    os.kill(first, signal.SIGSTOP)
    until(lambda: len(starters.executions()) == 2)
    if published:
        starters.open("gate 2")
        assert outcome(starters, "second") == ["ran", ""]
    starters.open("gate 1")
    os.kill(first, signal.SIGCONT)
    if not published:
        until(lambda: "took over" in starters.said("first"))
        assert starters.store().records("once") == []
        starters.open("gate 2")
        assert outcome(starters, "second") == ["ran", ""]
    assert outcome(starters, "first") == ["hit", f"made meanwhile by {socket.gethostname()} pid {second}"]
    first_result, second_result = starters.result("first"), starters.result("second")
    assert first_result["digests"] == second_result["digests"]
    assert "once is not deterministic" in first_result["notes"][0]
    (record,) = starters.store().records("once")
    assert record["artifact"] == second_result["digests"]["once"]
    assert starters.store().attempt(record["key"], record["attempt"])["run"] == "second"
    check_end(starters)


def test_a_superseded_stage_that_speaks_is_stopped_early(local: Forks) -> None:
    first = local.start("first", gate="never", mute=False, ttl=SHORT)
    until(local.executions)
    local.start("second", ttl=SHORT)
    os.kill(first, signal.SIGSTOP)
    assert outcome(local, "second") == ["ran", ""]
    os.kill(first, signal.SIGCONT)
    assert outcome(local, "first")[0] == "hit"
    key = local.store().records("once")[0]["key"]
    attempts = [local.store().attempt(key, path.stem) for path in (local.folder / "store/attempts" / key).iterdir()]
    assert {attempt["run"]: attempt["outcome"] for attempt in attempts} == {
        "first": "superseded",
        "second": "completed",
    }


def test_ctrl_c_ends_the_waiting_at_once(local: Forks) -> None:
    first = local.start("first", gate="gate")
    until(local.executions)
    second = local.start("second", gate="gate")
    until(lambda: "waits for" in local.said("second"))
    os.kill(second, signal.SIGINT)
    assert local.result("second")["interrupted"]
    assert alive(first)
    local.open("gate")
    assert outcome(local, "first") == ["ran", ""]
    assert local.executions() == [first]


def test_a_failed_holder_lets_the_next_one_try(local: Forks) -> None:
    first = local.start("first", gate="gate")
    until(local.executions)
    local.start("second", gate="gate")
    until(lambda: "waits for" in local.said("second"))
    os.kill(first, signal.SIGINT)
    until(lambda: len(local.executions()) == 2)
    local.open("gate")
    assert outcome(local, "second") == ["ran", ""]


def test_forced_starters_run_in_turn(local: Forks) -> None:
    local.start("first")
    assert outcome(local, "first") == ["ran", ""]
    for name in ("second", "third"):
        local.start(name, force=["once"])
    assert [outcome(local, name) for name in ("second", "third")] == [["ran", ""], ["ran", ""]]
    assert len(local.executions()) == 3


def test_a_memory_store_has_leases_too(tmp_path: Path) -> None:
    store = new_store(tmp_path, "memory://single-flight")
    assert run_stage(once, OnceConfig(journal=str(tmp_path / "journal")), context(store)).action == "ran"
    assert store.backend.names("leases") == []
