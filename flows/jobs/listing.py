"""What became of the jobs of a store, by its documents alone."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, datetime
from typing import TypedDict

from trnflow.flows.jobs.order import order_file, result_file
from trnflow.flows.jobs.submitted import submissions_of
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, StoreError
from trnflow.tasks.events import RunState, fold
from trnflow.tasks.events.log_copy import SILENT_SECONDS, CopiedLogs
from trnflow.tasks.store import Store
from trnflow.tasks.store.document_check import checked_document
from trnflow.tasks.store.lease import live_leases


class Job(TypedDict):
    """A job.

    Fields:
        state: ordered (no run yet), running, completed, failed, stopped (it goes on when it is run again), or killed;
            queued where a platform that has it is asked.
        platform, ticket: To which it was submitted last, and its own name of it.
        run, host: Of its newest run.
        stage: Where a run in progress is, or a killed one was.
        why: The error of a failed one.
    """

    job: str
    recipe: str | None
    state: str
    platform: str | None
    ticket: str | None
    run: str | None
    host: str | None
    stage: str | None
    ended: str | None
    why: str


def list_jobs(store: Store) -> list[Job]:
    """Return the jobs, those without a run first, then the newest run first. Raises StoreError."""
    leased = {holder.run for _, holder, _ in live_leases(store.backend)}
    jobs = [job_of(store, name, leased) for name in store.backend.folders("jobs")]
    return sorted((job for job in jobs if job is not None), key=lambda job: job["run"] or "~", reverse=True)


def job_of(store: Store, name: str, leased: set[str]) -> Job | None:
    """Return a job; None without an order. leased: runs that hold a lease."""
    order = read_document(store, order_file(name))
    if order is None:
        return None
    newest: Meta = {**submitted[-1]} if (submitted := submissions_of(store, name)) else {}
    # submitted again, it has not begun
    runs = [run for run in runs_of(store, name) if run not in newest.get("earlier", ())]
    result = read_document(store, result_file(name)) or {}
    begun = read_document(store, f"jobs/{name}/runs/{runs[-1]}") or {} if runs else {}
    job = Job(
        job=name, recipe=order.get("name"), state="ordered", platform=newest.get("platform"),
        ticket=newest.get("ticket"), run=runs[-1] if runs else None, host=begun.get("host"),
        stage=None, ended=None, why="",
    )  # fmt: skip
    if not runs:
        return job
    if result.get("run") == runs[-1]:
        why = str((result.get("error") or {}).get("message", ""))
        return Job(**{**job, "state": str(result.get("outcome")), "ended": result.get("ended"), "why": why})
    copy, state = CopiedLogs(store.backend, runs[-1]), RunState()
    with contextlib.suppress(ConfigError, StoreError):
        fold(copy.tail(), state)
    at = next((stage.stage for stage in state.stages.values() if stage.action == "running"), None)
    # a run's first event is copied after a second
    begins = copy.signed is None and seconds_since(str(begun.get("begun"))) < SILENT_SECONDS
    lives = runs[-1] in leased or begins or (state.outcome == "running" and not copy.is_silent)
    # without a result an ended run is from before the job was ordered again
    state_of = "running" if lives else "killed" if state.ended is None else "ordered"
    return Job(**{**job, "state": state_of, "stage": at})


def runs_of(store: Store, job: str) -> list[str]:
    """Return the runs of a job, the oldest first."""
    return sorted(name.rpartition("/")[2] for name in store.backend.names(f"jobs/{job}/runs"))


def jobs_by_run(store: Store) -> dict[str, str]:
    """Return {run: the job that it belongs to}. Raises StoreError."""
    parts = (name.split("/") for name in store.backend.names("jobs"))
    return {part[3]: part[1] for part in parts if part[2:3] == ["runs"]}


def seconds_since(time: str) -> float:
    """Return the seconds since a time of `clock.now`; inf for another text."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    except (ValueError, TypeError):
        return math.inf


def stop_file(job: str, run: str) -> str:
    """Return the file that asks a run of a job to stop."""
    return f"jobs/{job}/stop/{run}"


def read_document(store: Store, name: str) -> Meta | None:
    """Return a document; None without it, or if it is of another shape, which `verify` says."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return checked_document(name, store.backend.read(name))
    return None
