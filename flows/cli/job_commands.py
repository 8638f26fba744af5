"""`trnflow job ROOT#DIGEST` runs a job that `trnflow run --detach` ordered; `trnflow jobs` lists, follows and stops jobs."""

from __future__ import annotations

import contextlib
import os
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.live.status_command import follow
from trnflow.flows.cli.output import emit, emit_json, print_error, tell
from trnflow.flows.display import report
from trnflow.flows.display.progress import Progress
from trnflow.flows.finetune import finetune
from trnflow.flows.jobs.listing import Job, list_jobs, runs_of, stop_file
from trnflow.flows.jobs.order import job_name, parse_uri
from trnflow.flows.jobs.platforms import platform_named
from trnflow.flows.jobs.work import work
from trnflow.flows.recipes.files import hardware_price
from trnflow.tasks.errors import ConfigError, Interrupted, MachineError, TrnflowError
from trnflow.tasks.platforms.protocol import FAILURE_FILE, STOPPED
from trnflow.tasks.platforms.sagemaker import Pool, SageMaker
from trnflow.tasks.store import Store, made_store
from trnflow.tasks.system.redaction import scrubbed
from trnflow.tasks.system.terminal import one_line

LOOK_SECONDS = 5.0
COPY_SECONDS = 60.0
"""How long a run that has begun may take to copy its first event."""
NOT_RUNNING = ("queued", "ordered", "stopped", "killed")
HEAD = ("job", "recipe", "state", "platform", "ticket", "run", "host", "stage", "ended", "why")


def add_commands(sub: Any, common: ArgumentParser, store: ArgumentParser) -> None:
    parser = add_command(sub, "job", job, common, "run a job that `run --detach` ordered on another machine")
    parser.add_argument("uri", metavar="ROOT#DIGEST", help="the store and the order, as `run --detach` prints them")
    listed = add_command(sub, "jobs", jobs, store, "list the jobs of a store; follow or stop one")
    listed.add_argument("job", metavar="ID", nargs="?", help="a job's id, or its beginning")
    listed.add_argument("--follow", action="store_true", help="wait until it runs, and show its progress until it ends")
    listed.add_argument("--cancel", action="store_true", help="ask it to save its state and stop")


def job(options: Namespace) -> int:
    """Run a job, and print a table; return 0 if it completed, STOPPED if it is to be started again, else the error's code,
    which of a job that was asked to stop is Interrupted's."""
    try:
        with Progress() as progress:
            result, was_asked = work(parse_uri(options.uri), finetune, progress)
    except KeyboardInterrupt:
        print_error(Interrupted("the job was stopped before it began", "run the same command again"), options)
        return STOPPED
    except TrnflowError as error:
        _tell_platform(error)
        raise
    if options.json:
        emit_json(result.to_json())
    else:
        tell(*report.ended(result.steps, result.notes, result.verdict))
    if result.error is None:
        return 0
    code = print_error(result.error, options)
    _tell_platform(result.error)
    return STOPPED if isinstance(result.error, Interrupted) and not was_asked else code


def _tell_platform(error: TrnflowError) -> None:
    """Write an error where the job's platform looks for it, if it does."""
    if file := os.environ.get(FAILURE_FILE):
        with contextlib.suppress(OSError):
            Path(file).write_text(one_line(scrubbed(error)))


def jobs(options: Namespace) -> int:
    """Print a line for each job, or of one; follow or stop it. Raises ConfigError."""
    store = made_store(options.store)
    found = [_at_platform(job, store) for job in list_jobs(store)]
    if options.job is None:
        if options.follow or options.cancel:
            raise ConfigError("which job?", "name one: `trnflow jobs` lists them")
        table = report.aligned([HEAD, *map(_row, found)]) if found else ["no jobs"]
        pools = _pools(store, found)
        emit(options, {"jobs": found, "pools": [pool._asdict() for pool in pools]}, *table, *map(_told, pools))
        return 0
    one = _named(options.job, found)
    if options.cancel:
        return _cancel(store, one, options)
    if options.follow:
        while not (runs := runs_of(store, one["job"])):
            if _is_at_platform(one, store) is False and not runs_of(store, one["job"]):
                raise ConfigError(
                    f"job {one['job']} will not run: {one['platform']} does not have it",
                    "order it anew: `trnflow run RECIPE --detach`",
                )
            time.sleep(LOOK_SECONDS)
        until = time.monotonic() + COPY_SECONDS
        while not store.backend.names(f"logs/{runs[-1]}") and time.monotonic() < until:
            time.sleep(1.0)
        return follow(store, runs[-1], options)
    emit(options, {"jobs": [one]}, *report.aligned([HEAD, _row(one)]))
    return 0


def _at_platform(job: Job, store: Store) -> Job:
    """Return a job as `queued` if its platform has it, and it does not run."""
    if job["state"] not in NOT_RUNNING or not _is_at_platform(job, store):
        return job
    return Job(**{**job, "state": "queued"})


def _is_at_platform(job: Job, store: Store) -> bool | None:
    """Return whether a job waits or runs at its platform; None without one, or if it does not answer."""
    if job["platform"] is not None:
        with contextlib.suppress(ConfigError, MachineError):
            return platform_named(job["platform"], store).find(job_name(store.root, job["job"])) is not None
    return None


def _pools(store: Store, found: list[Job]) -> list[Pool]:
    """Return the instances that jobs have left warm; none where SageMaker does not answer."""
    if not any(job["platform"] == SageMaker.kind for job in found):
        return []
    with contextlib.suppress(TrnflowError):
        return SageMaker(store.root).pools()
    return []


def _told(pool: Pool) -> str:
    price = hardware_price(pool.instance)
    cost = "" if price is None else f", {pool.seconds / 3600 * price:.2f} USD"
    return f"kept warm, and paid for: {pool.instance} of {pool.ticket}, {pool.seconds / 60:.0f} min until now{cost}"


def _named(text: str, found: list[Job]) -> Job:
    """Return the job with this id or beginning. Raises ConfigError."""
    fitting = [job for job in found if job["job"].startswith(text)]
    if len(fitting) != 1:
        what = "there is no job" if not fitting else "several jobs begin with"
        raise ConfigError(f"{what} {text}", "`trnflow jobs` lists them")
    return fitting[0]


def _cancel(store: Store, one: Job, options: Namespace) -> int:
    if one["platform"] is not None and one["state"] in NOT_RUNNING:
        # asked once more: the list leaves out what the platform did not answer
        platform = platform_named(one["platform"], store)
        if (ticket := platform.find(job_name(store.root, one["job"]))) is not None:
            platform.end(ticket)
            emit(options, {"job": one["job"], "run": None}, f"job {one['job']} was taken out of the queue")
            return 0
    if one["state"] != "running" or one["run"] is None:
        raise ConfigError(f"job {one['job']} does not run: it is {one['state']}", "`trnflow jobs` lists those that do")
    store.backend.create(stop_file(one["job"], one["run"]), b"")
    said = f"job {one['job']} was asked to save its state and stop; `trnflow jobs {one['job']}` says when it has"
    emit(options, {"job": one["job"], "run": one["run"]}, said)
    return 0


def _row(one: Job) -> tuple[str, ...]:
    return tuple(str(one[name] or "") for name in HEAD)  # type: ignore[literal-required]
