"""The status with which `trnflow job` ends, by which a platform starts it again or not."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest

from trnflow.flows.cli import job_commands
from trnflow.tasks.errors import ConfigError, DataError, Interrupted, TrnflowError
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


def test_a_job_that_was_taken_out_of_the_queue_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ordered = {"job": "ab12", "platform": "slurm", "state": "ordered", "run": None}
    monkeypatch.setattr(job_commands, "made_store", lambda _: SimpleNamespace(root="/store"))
    monkeypatch.setattr(job_commands, "list_jobs", lambda _: [ordered])
    monkeypatch.setattr(job_commands, "runs_of", lambda *_: [])
    monkeypatch.setattr(job_commands, "platform_named", lambda *_: SimpleNamespace(find=lambda _: None))
    options = Namespace(store=None, job="ab", cancel=False, follow=True, json=False)
    with pytest.raises(ConfigError, match="ab12 will not run: slurm does not have it"):
        job_commands.jobs(options)
