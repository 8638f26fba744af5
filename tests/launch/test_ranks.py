"""A stage that several processes run together: who speaks, who is told, and what becomes of the others when one fails."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from tests.launch import stages
from tests.launch.processes import gone, wait_for
from tests.launch.test_local import in_thread
from trnflow.tasks.errors import DataError, Interrupted, MachineError, ProcessFailed, TrnflowError
from trnflow.tasks.launch import ranks
from trnflow.tasks.launch.call import Call
from trnflow.tasks.launch.local import run_call
from trnflow.tasks.launch.ranks import _outcome, leave

STARTED = pytest.param((), id="started")
FORKED = pytest.param(("json",), id="forked")


@pytest.fixture(params=[pytest.param((), id="started", marks=pytest.mark.nightly), FORKED])
def call_for(request):
    """Makes calls of three ranks whose leader is started anew, or forked from a warm parent; in most tests this is all the
    same."""

    def call(folder: Path, how: str) -> Call:
        config = stages.NapConfig(how=how, pids=folder)
        return Call.of(stages.together, config, {}, folder / "out", ranks=3, preload=request.param)

    return call


def pids(folder: Path) -> list[int]:
    return [int((folder / f"rank-{rank}").read_text()) for rank in range(3)]


def test_rank_0_speaks_for_all(call_for, tmp_path):
    heard = []
    meta = run_call(call_for(tmp_path, "agree"), heard.append)
    assert meta["rank"] == 0 and not Path(meta["met at"]).parent.exists()
    assert 1023 < meta["port"] < 1 << 16
    assert heard == [{"info": "rank 0"}]
    assert len(set(pids(tmp_path))) == 3


def test_a_killed_rank_is_named_and_the_others_end(call_for, tmp_path):
    call = call_for(tmp_path, "killed")
    with pytest.raises(ProcessFailed, match=r"rank 1 of 3 died without a word \(signal SIGKILL\)") as caught:
        run_call(call, lambda event: None)
    assert gone(pids(tmp_path))
    assert "still at work were ranks 0, 2" in caught.value.message
    assert "--- rank 2" in caught.value.details and "in stuck" in caught.value.details
    assert "in stuck" in call.log.read_text()


def test_the_error_of_one_rank_is_told_with_its_number(call_for, tmp_path):
    with pytest.raises(DataError, match="rank 1 of 3: rows.csv, row 3: no label") as caught:
        run_call(call_for(tmp_path, "data"), lambda event: None)
    assert caught.value.fix == "give every row a label"
    assert gone(pids(tmp_path))


def test_a_rank_that_never_comes_shows_its_stack(call_for, tmp_path):
    with pytest.raises(
        ProcessFailed, match=r"rank [02] of 3: .*waited for rank 1; still at work were ranks 1"
    ) as caught:
        run_call(call_for(tmp_path, "stuck"), lambda event: None)
    assert "in stuck" in caught.value.details.partition("--- rank 1")[2]
    assert gone(pids(tmp_path))


def test_all_ranks_end_when_rank_0_has_saved(call_for, tmp_path):
    thread, caught = in_thread(call_for(tmp_path, "save"), 30)
    os.killpg(wait_for(tmp_path / "pids.json", json.loads)[1], signal.SIGTERM)
    thread.join()
    assert isinstance(caught[0], Interrupted) and "step 5" in caught[0].message
    assert (tmp_path / "saved").read_text() == "checkpoint"
    assert gone(pids(tmp_path))


@pytest.mark.parametrize("call_for", [STARTED, FORKED], indirect=True)
def test_a_killed_leader_takes_all_ranks_with_it(call_for, tmp_path):
    thread, caught = in_thread(call_for(tmp_path, "save"), 30)
    os.kill(wait_for(tmp_path / "pids.json", json.loads)[1], signal.SIGKILL)
    thread.join()
    assert isinstance(caught[0], MachineError) and "signal SIGKILL" in caught[0].message
    assert gone(pids(tmp_path))


def test_of_several_errors_the_likeliest_cause_is_told(tmp_path: Path) -> None:
    """Where one rank fails, others fail of that: with an error of their library, or they are killed."""

    def told(*ranks: TrnflowError | None) -> str:
        for rank, error in enumerate(ranks):
            (tmp_path / f"rank-{rank}.json").unlink(missing_ok=True)
            if error is not None:
                leave(rank, tmp_path, {"error": error.to_json(), "details": ""})
        return str(_outcome([1, -signal.SIGKILL, 1], [], tmp_path)["error"]["message"])

    lost, row = ProcessFailed("train failed with RuntimeError: connection closed"), DataError("row 3: no label")
    assert told(lost, None, row) == "rank 2 of 3: row 3: no label"
    assert told(lost, None, lost).startswith("rank 1 of 3 died without a word (signal SIGKILL)")
    assert told(lost, ProcessFailed("later"), lost).startswith("rank 0 of 3: train failed with RuntimeError")
    assert told(row, None, lost) == "row 3: no label", "of the first rank as if it were alone"


@pytest.mark.process
@pytest.mark.timeout(60)
def test_ranks_that_wait_for_a_failed_one_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "LAST_WORDS", 0.1)
    monkeypatch.setattr(ranks, "STACK_SECONDS", 0.0)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=time.sleep, args=(600,)), fork.Process(target=os._exit, args=(3,))]
    try:
        for process in processes:
            process.start()
        assert ranks._watch(processes, tmp_path) == [0]
    finally:
        for process in processes:
            process.kill()
            process.join()
