"""The status with which `trnflow job` ends, by which a platform starts it again or not."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest

from trnflow.flows.cli import job_commands
from trnflow.tasks.errors import DataError, Interrupted, TrnflowError
from trnflow.tasks.platforms.protocol import STOPPED

STOP = Interrupted("training was stopped at step 7", "run the same command again")
BROKEN = DataError("the file is broken", "mend it")


@pytest.mark.parametrize(
    ("error", "was_asked", "status"),
    [
        (None, False, 0),
        (STOP, False, STOPPED),
        (STOP, True, Interrupted.exit_code),  # who cancelled it wants it to end
        (BROKEN, False, DataError.exit_code),
    ],
)
def test_a_job_asks_to_be_started_again_unless_it_was_cancelled(
    error: TrnflowError | None, was_asked: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = SimpleNamespace(steps=[], notes=[], verdict=[], error=error)
    monkeypatch.setattr(job_commands, "work", lambda *_: (result, was_asked))
    assert job_commands.job(Namespace(uri=f"/store#{'0' * 64}", json=False, debug=False)) == status
