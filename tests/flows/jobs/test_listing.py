"""What became of a store's jobs, by its documents alone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from trnflow.flows.jobs.listing import Job, job_of, jobs_by_run, list_jobs
from trnflow.tasks.store import Store
from trnflow.tasks.system.clock import now


def write(store: Store, job: str, name: str, document: Any) -> None:
    store.backend.replace(f"jobs/{job}/{name}", json.dumps(document).encode())


def begins(store: Store, job: str, run: str, begun: str, *events: dict[str, Any], age: float = 0.0) -> None:
    write(store, job, f"runs/{run}", {"run": run, "host": "n1", "begun": begun})
    lines = [{"event": "run_begun", "run": run}, *events]
    text = "".join(json.dumps({"n": n, "time": 1.0, **line}) + "\n" for n, line in enumerate(lines))
    name = f"logs/{run}/0.jsonl"
    store.backend.replace(name, text.encode())
    os.utime(Path(store.root) / name, (time.time() - age,) * 2)


def seen(store: Store, job: str, *leased: str) -> Job:
    found = job_of(store, job, {*leased})
    assert found is not None
    return found


LONG_AGO = "2026-01-01T00:00:00Z"


def test_a_job_is_ordered_runs_and_is_killed_or_has_ended(store: Store) -> None:
    assert job_of(store, "1", set()) is None, "it has no order"
    write(store, "1", "order.json", {"name": "mine"})
    assert (seen(store, "1")["recipe"], seen(store, "1")["state"]) == ("mine", "ordered")
    begins(store, "1", "r1", LONG_AGO, age=600)
    assert seen(store, "1")["state"] == "killed"
    assert seen(store, "1", "r1")["state"] == "running", "it holds a lease"
    begins(store, "1", "r1", LONG_AGO, age=0)
    assert seen(store, "1")["state"] == "running", "its log was written just now"
    write(
        store, "1", "result.json", {"run": "r1", "outcome": "failed", "ended": now(), "error": {"message": "no rows"}}
    )
    assert (seen(store, "1")["state"], seen(store, "1")["why"]) == ("failed", "no rows")
    # the result is of an older run
    begins(store, "1", "r2", LONG_AGO, age=600)
    assert (seen(store, "1")["run"], seen(store, "1")["state"]) == ("r2", "killed")


def test_a_run_that_began_just_now_has_no_copy_of_its_log_yet(store: Store) -> None:
    write(store, "1", "order.json", {"name": "mine"})
    write(store, "1", "runs/r1", {"run": "r1", "host": "n1", "begun": now()})
    assert seen(store, "1")["state"] == "running"
    write(store, "1", "runs/r1", {"run": "r1", "host": "n1", "begun": LONG_AGO})
    assert seen(store, "1")["state"] == "killed"
    write(store, "1", "runs/r1", {"run": "r1", "host": "n1", "begun": "forged"})
    assert seen(store, "1")["state"] == "killed"


def test_a_run_that_ended_without_result_was_before_the_job_was_ordered_anew(store: Store) -> None:
    write(store, "1", "order.json", {"name": "mine"})
    ended = {"outcome": "failed", "error": None, "seconds": 1.0, "dollars": 0.0, "lost": 0, "notes": []}
    begins(store, "1", "r1", LONG_AGO, {"event": "run_ended", **ended}, age=600)
    assert seen(store, "1")["state"] == "ordered"


def test_a_job_that_was_submitted_again_has_not_begun(store: Store) -> None:
    write(store, "1", "order.json", {"name": "mine"})
    begins(store, "1", "r1", LONG_AGO, age=600)
    for number in (9, 10):
        document = {"platform": "slurm", "ticket": str(number), "earlier": ["r1"], "host": "h", "time": now()}
        write(store, "1", f"submitted/{number}.json", document)
    found = seen(store, "1")
    assert (found["state"], found["run"], found["platform"], found["ticket"]) == ("ordered", None, "slurm", "10")


def test_jobs_without_a_run_stand_first_then_the_newest_run(store: Store) -> None:
    for job, run in (("a", "r1"), ("b", None), ("c", "r3"), ("d", "r2")):
        write(store, job, "order.json", {"name": job})
        if run:
            begins(store, job, run, LONG_AGO)
    assert [job["job"] for job in list_jobs(store)] == ["b", "c", "d", "a"]
    assert jobs_by_run(store) == {"r1": "a", "r2": "d", "r3": "c"}
