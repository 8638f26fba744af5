"""What a run makes of a job's result and of its platform's word: goes on, waits, stops the job, or ends with an error."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.helpers.stores import new_store
from trnflow.flows.jobs import following
from trnflow.flows.jobs.following import ASK_SECONDS, LAST_SECONDS, FollowedJob
from trnflow.flows.jobs.listing import stop_file
from trnflow.flows.jobs.order import JobUri, result_file
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.work_folders import attempt_log
from trnflow.tasks.documents import JobSubmission
from trnflow.tasks.errors import DataError, Interrupted, MachineError, StoreError, TrnflowError
from trnflow.tasks.events import EventLog, Reader, RunState
from trnflow.tasks.events.event_types import Event
from trnflow.tasks.events.log_copy import SILENT_SECONDS
from trnflow.tasks.platforms.protocol import Platform, Standing
from trnflow.tasks.system.clock import now


class Told(Reader):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def read(self, event: Event, state: RunState) -> None:
        self.events.append(event)


class Job:
    """A job of stage train on a platform, with a clock of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, submitted: str, hours: float) -> None:
        self.store, self.told = new_store(folder), Told()
        self.standing, self.ended, self.asked, self.seconds = Standing("running"), list[str](), 0, 1000.0
        self.printed = ""
        clock = SimpleNamespace(monotonic=lambda: self.seconds, sleep=self.wait)
        monkeypatch.setattr(following, "time", clock)
        self.uri = JobUri(self.store.root, "a" * 64)
        submission = JobSubmission(platform="slurm", ticket="7", earlier=["0old"], host="", time=submitted)
        platform: Any = SimpleNamespace(
            kind="slurm", look=self._look, end=self.ended.append, printed=lambda ticket: self.printed
        )
        context = cast(RunContext, SimpleNamespace(store=self.store, log=EventLog(self.told), run="here"))
        self.followed = FollowedJob(context, self.uri, submission, cast(Platform, platform), hours, ("train",))

    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    def _look(self, ticket: str) -> Standing:
        self.asked += 1
        return self.standing

    def begins(self, run: str, *events: dict[str, Any]) -> None:
        self.store.backend.create(f"jobs/{self.uri.id}/runs/{run}", json.dumps({"run": run}).encode())
        lines = [{"event": "run_begun", "run": run}, *events]
        text = "".join(json.dumps({"n": n, "time": 1.0, **line}) + "\n" for n, line in enumerate(lines))
        self.store.backend.replace(f"logs/{run}/0.jsonl", text.encode())

    def ends(self, run: str, outcome: str, error: Any = None) -> None:
        document = {"run": run, "outcome": outcome, "stages": [], "notes": ["n"], "ended": now(), "error": error}
        self.store.backend.replace(result_file(self.uri.id), json.dumps(document).encode())

    def fault(self, after: float = ASK_SECONDS) -> TrnflowError | None:
        """Return what is wrong after a look some seconds later."""
        self.seconds += after
        self.followed.look("train")
        return self.followed.fault("train")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch, now(), 1.0)


def test_the_platform_is_asked_now_and_then(job: Job) -> None:
    assert job.fault() is None and job.asked == 1
    assert job.fault(1.0) is None and job.fault(1.0) is None and job.asked == 1
    assert job.fault(ASK_SECONDS) is None and job.asked == 2


@pytest.mark.parametrize(("hours", "ends"), [(0.9, True), (1.1, False)])
def test_a_job_for_which_no_machine_comes_is_ended(
    hours: float, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "seconds_since", lambda time: 3600.0)
    job = Job(tmp_path, monkeypatch, now(), hours)
    job.standing = Standing("waiting", "Resources")
    fault = job.fault()
    assert (fault is not None, job.ended) == (ends, ["7"] * ends)
    if fault is not None:
        assert "no machine came in 0.9 h (Resources)" in fault.message and "max_wait_hours" in fault.fix


def test_a_job_that_waits_again_after_it_has_run_is_not_ended(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "seconds_since", lambda time: 1e9)
    job.begins("1new")
    job.standing = Standing("waiting", "BeginTime")
    assert job.fault() is None and job.ended == []


def test_a_job_without_result_is_given_time_for_it_to_be_seen(job: Job) -> None:
    job.standing, job.printed = Standing("ended", "NODE_FAIL"), "first\n\x1b[31mno module trnflow\n"
    assert job.fault() is None and job.fault(LAST_SECONDS - 1) is None
    # it was only requeued: its time begins anew
    job.standing = Standing("waiting", "BeginTime")
    assert job.fault() is None
    job.standing = Standing("ended", "NODE_FAIL")
    assert job.fault() is None and job.fault(LAST_SECONDS - 1) is None
    fault = job.fault(ASK_SECONDS)
    assert isinstance(fault, MachineError) and job.followed.is_over
    assert "before trnflow began (NODE_FAIL): " in fault.message and "\x1b" not in fault.message
    assert "no module trnflow" in fault.message and "launch.python" in fault.fix


def test_a_job_that_ended_while_it_ran_says_so(job: Job) -> None:
    job.begins("1new")
    job.standing = Standing("ended", "")
    assert job.fault() is None
    fault = job.fault(LAST_SECONDS)
    assert fault is not None and fault.message.endswith("before it could say why")


def test_a_stopped_job_counts_once_its_platform_does_not_start_it_again(job: Job) -> None:
    job.begins("1new")
    job.ends("1new", "stopped", {"type": "Interrupted", "message": "stopped by SIGTERM"})
    assert job.fault() is None and not job.followed.is_over
    job.standing = Standing("ended", "")
    fault = job.fault()
    assert isinstance(fault, Interrupted) and fault.message == "stopped by SIGTERM" and job.followed.is_over


def test_a_job_that_was_asked_to_stop_counts_at_once(job: Job) -> None:
    job.begins("1new")
    assert job.fault() is None
    assert job.followed.ask_to_stop("train") and job.ended == []
    assert job.store.backend.size(stop_file(job.uri.id, "1new")) is not None
    # started again meanwhile, it is asked again
    job.begins("2new")
    assert job.fault() is None and job.store.backend.size(stop_file(job.uri.id, "2new")) is not None
    job.ends("2new", "stopped", {"type": "Interrupted", "message": "stopped"})
    assert isinstance(job.fault(), Interrupted)


def test_a_job_that_has_not_begun_is_taken_from_the_queue(job: Job) -> None:
    job.standing = Standing("waiting", "")
    assert not job.followed.ask_to_stop("train")
    assert job.ended == ["7"] and job.followed.is_over


def test_results_and_runs_of_earlier_submissions_do_not_count(job: Job) -> None:
    job.begins("0old", {"event": "stage_ended", "stage": "train"})
    job.ends("0old", "failed", {"type": "DataError", "message": "old"})
    assert job.fault() is None and job.followed.ended == {}
    job.begins("1new")
    assert job.fault() is None
    assert [event["text"] for event in job.told.events if event["event"] == "note"] == [
        f"job {job.uri.id} runs as 1new"
    ]


def test_an_error_keeps_its_kind_and_its_stage(job: Job) -> None:
    job.begins("1new")
    job.ends("1new", "failed", {"type": "DataError", "message": "row 3 is empty", "fix": "fill it", "stage": "train"})
    fault = job.fault()
    assert isinstance(fault, DataError) and (fault.message, fault.stage) == ("row 3 is empty", "train")
    assert job.followed.is_over


@pytest.mark.parametrize("kind", ["BlobLost", "HomeRemoved"])
def test_a_home_or_blob_that_was_lost_there_is_not_repaired_here(kind: str, job: Job) -> None:
    job.begins("1new")
    job.ends("1new", "failed", {"type": kind, "message": "it is gone", "stage": "train"})
    fault = job.fault()
    assert type(fault) is MachineError and fault.message == f"job {job.uri.id}: it is gone"


def test_only_what_stages_of_the_job_report_is_passed_on_and_each_step_once(job: Job) -> None:
    step = {"event": "metrics", "stage": "train", "step": 1, "values": {"loss": 2.0}}
    job.begins("1new", step, {**step, "stage": "load_data", "step": 7})
    job.fault()
    job.begins("2new", step, {**step, "step": 2})
    job.fault()
    told = [event["step"] for event in job.told.events if event["event"] == "metrics"]
    assert told == [1, 2]
    # readers that ended the run, such as a pruner, get no more
    job.followed.tells = False
    job.begins("3new", {**step, "step": 3})
    job.fault()
    assert len([event for event in job.told.events if event["event"] == "metrics"]) == 2


def test_a_store_that_does_not_answer_ends_the_run_only_after_minutes(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> Any:
        raise StoreError("the store is away")

    with monkeypatch.context() as away:
        away.setattr(following, "runs_of", gone)
        assert job.fault(SILENT_SECONDS - 1) is None
    assert job.fault(1.0) is None, "it has answered"
    monkeypatch.setattr(following, "runs_of", gone)
    assert job.fault(SILENT_SECONDS - 1) is None
    with pytest.raises(StoreError):
        job.fault(2.0)


def test_a_job_that_is_queued_a_second_time_is_taken_back_at_its_end(job: Job) -> None:
    job.begins("1new")
    job.ends("1new", "completed")
    job.standing = Standing("waiting", "Dependency")
    job.followed.look("train")
    assert job.followed.last_notes("train") == ["n"] and job.ended == ["7"]


def test_what_a_stage_prints_there_is_in_the_log_of_the_run_here(job: Job) -> None:
    log = attempt_log(job.store.home, "here", "here-train-1")
    log.parent.mkdir(parents=True, exist_ok=True)
    job.begins("1new")
    for number, text in enumerate((b"begun\n", b"ended\n")):
        job.store.backend.create(f"logs/1new/1new-train-1/{number}.log", text)
        job.fault()
    assert log.read_bytes() == b"begun\nended\n"
