"""Which rank's error is reported when several fail, which one is for signals, and what each knows of the others."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from trnflow.tasks.errors import DataError, ProcessFailed
from trnflow.tasks.launch.ranks import _outcome, enter, environ, leave


def test_of_errors_that_are_nobody_s_the_earliest_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, at in ((0, 3.0), (1, 2.0), (2, 1.0)):
        monkeypatch.setattr(time, "time", lambda at=at: at)
        leave(rank, tmp_path, {"error": ProcessFailed(f"broken {rank}", "").to_json(), "details": ""})
    assert _outcome([1, 1, 1], [], tmp_path)["error"]["message"] == "rank 2 of 3: broken 2"
    leave(1, tmp_path, {"error": DataError("row 3", "").to_json(), "details": ""})
    assert _outcome([1, 1, 1], [], tmp_path)["error"]["message"] == "rank 1 of 3: row 3"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_ranks_is_for_the_first_alone(number: signal.Signals, tmp_path: Path) -> None:
    """The others go on until rank 0 has saved: the signal reaches the whole group of processes."""
    told: list[int] = []

    def interrupt(got: int, frame: object) -> None:
        os._exit(10 + got)

    for rank in (0, 1):
        if (pid := os.fork()) == 0:
            enter(rank, os.getppid(), tmp_path, interrupt)
            os.kill(os.getpid(), number)
            os._exit(0)
        told.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    assert told == [10 + number, 0]


def test_ranks_know_their_number_and_how_many_there_are(tmp_path: Path) -> None:
    found = environ(1, 3, tmp_path, 4711)
    assert [found[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["1", "1", "3", "3"]
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("127.0.0.1", "4711")
    assert found["TRNFLOW_RENDEZVOUS"] == environ(0, 3, tmp_path, 1)["TRNFLOW_RENDEZVOUS"], "one file for all"
