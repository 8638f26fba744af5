"""What a follower says of a job by the store's documents and its platform's word."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.helpers.stores import new_store
from trnflow.flows.jobs.following import FollowedJob
from trnflow.flows.jobs.order import JobUri
from trnflow.flows.runner.context import RunContext
from trnflow.tasks.documents import JobSubmission
from trnflow.tasks.events import EventLog, Reader, RunState
from trnflow.tasks.events.event_types import Event
from trnflow.tasks.platforms.protocol import Platform, Standing


class Notes(Reader):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "note":
            self.texts.append(event["text"])


def test_a_job_that_its_platform_calls_running_and_that_is_silent_is_named_once(tmp_path: Path) -> None:
    """So it stands for minutes when a node of Slurm has died."""
    store, notes = new_store(tmp_path), Notes()
    uri = JobUri(store.root, "a" * 64)
    store.backend.create(f"jobs/{uri.id}/runs/there", b'{"run": "there"}')
    copy = "logs/there/0.jsonl"
    store.backend.create(copy, json.dumps({"n": 0, "time": 0.0, "event": "run_begun", "run": "there"}).encode() + b"\n")
    submission = JobSubmission(platform="slurm", ticket="7", earlier=[], host="", time="")
    platform: Any = SimpleNamespace(kind="slurm", look=lambda ticket: Standing("running"))
    context = cast(RunContext, SimpleNamespace(store=store, log=EventLog(notes), run="here"))
    job = FollowedJob(context, uri, submission, cast(Platform, platform), 24.0, ("train",))

    def looked(age: float) -> int:
        """The times that silence was said after a look at a log of this age."""
        os.utime(Path(store.root) / copy, (time.time() - age,) * 2)
        job._copy = None if job._copy is None else type(job._copy)(store.backend, "there")
        job.look("train")
        assert job.fault("train") is None
        return sum("no sign of life for 3 minutes, and slurm 7 says that it runs" in text for text in notes.texts)

    assert [looked(age) for age in (0, 600, 700, 0, 600)] == [0, 1, 1, 1, 2]
