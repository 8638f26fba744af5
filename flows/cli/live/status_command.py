"""`trnflow status`: list the stages that run now, on any machine that uses the store, by their leases. Neither Prefect
nor MLflow is asked."""

from __future__ import annotations

import contextlib
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from trnflow.flows.cli.arguments import RUN_NAMES, add_command
from trnflow.flows.cli.output import emit, say
from trnflow.flows.display import report
from trnflow.flows.display.progress import Progress, clock_face
from trnflow.flows.recipes.names import model_name
from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import Counted, Journal
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.events import RunState, fold, is_written, log_file, logged_runs, read_tail
from trnflow.tasks.events.reading import follow as follow_file
from trnflow.tasks.events.segments import COPY_SECONDS, CopiedLogs
from trnflow.tasks.events.state import present
from trnflow.tasks.store import Store, made_store
from trnflow.tasks.store.lease import Holder, live_leases
from trnflow.tasks.store.model_names import find_run

LOOK_SECONDS = 0.5


def add_commands(sub: Any, store: ArgumentParser) -> None:
    parser = add_command(sub, "status", status, store, "list the stages that run now, on any machine")
    parser.add_argument("run", metavar="RUN", nargs="?", help=f"of one run: {RUN_NAMES}")
    parser.add_argument(
        "--follow", action="store_true", help="show the progress of the run until it ends, as `run` does"
    )


def status(options: Namespace) -> int:
    """Print a line for each stage that runs now; with --follow the progress of a run, by default the newest, until it ends,
    and then 0 if it completed, else 1. Raises ConfigError."""
    store = made_store(options.store)
    stages = running(store)
    if options.run or options.follow:
        known = {one["run"] for one in stages} | {*logged_runs(store.home), *store.backend.folders("logs")}
        run = find_run(store, model_name(options.run or "last"), known)
        if options.follow:
            return follow(store, run)
        stages = [one for one in stages if one["run"] == run]
    rows = [("run", "recipe", "stage", "progress", "left", "host", "pid", "since"), *map(_row, stages)]
    emit(options, {"runs": stages}, *(report.aligned(rows) if stages else ["nothing runs"]))
    return 0


def follow(store: Store, run: str) -> int:
    """Show the progress of a run until it ends or is silent; return 0 if it completed, else 1."""
    file, copy, offset, state = log_file(store.home, run), CopiedLogs(store.backend, run), 0, RunState()
    is_here = file.exists()
    with Progress() as view:
        while True:
            is_over = not is_written(file) if is_here else copy.is_over()
            events, offset = follow_file(file, offset) if is_here else (copy.events(), 0)
            for event in events:
                state.take(event)
                view.read(event, state)
            if is_over and not events:
                break
            time.sleep(0.0 if is_over else LOOK_SECONDS if is_here else COPY_SECONDS)
    outcome = "killed" if state.outcome == "running" else state.outcome
    say(f"run {run}: {outcome}", *([] if state.error is None else [f"{state.error['message']}", state.error["fix"]]))
    return int(outcome != "completed")


class RunningStage(Counted):
    """A stage that runs now."""

    run: str
    recipe: str | None
    stage: str
    host: str
    pid: int
    since: str


def running(store: Store) -> list[RunningStage]:
    """Return the stages that run now, the oldest first.

    Progress is that of the run's event log, of a run of another machine that of its copy in the store, else that of the
    last heartbeat. It is None before the first report.
    """
    stages = []
    for holder, attempt, progress in leases_of_stages(store):
        reported = _logged_progress(store, holder.run, attempt["stage"]) or progress
        stages.append(
            RunningStage(
                run=holder.run, recipe=attempt.get("recipe") or None, stage=attempt["stage"],
                step=reported.get("step"), of=reported.get("of"), unit=reported.get("unit"), eta=reported.get("eta"),
                host=holder.process.host, pid=holder.process.pid, since=holder.since,
            )
        )  # fmt: skip
    return sorted(stages, key=lambda stage: stage["since"])


def leases_of_stages(store: Store, *, silent: bool = False) -> Iterator[tuple[Holder, Journal, Meta]]:
    """Yield (lease, journal, progress) of each stage that runs now. silent: also leases without recent heartbeats."""
    for key, holder, progress in live_leases(store.backend, silent=silent):
        attempt = store.attempt(key, holder.attempt)
        if (
            "stage" in attempt
        ):  # else the lease is that of a retraining or a sweep, or of a stage that is about to begin
            yield holder, attempt, progress


def _logged_progress(store: Store, run: str, stage: str) -> Counted | None:
    """Return the progress of a stage by the event log of its run, or None."""
    file = log_file(store.home, run)
    with contextlib.suppress(ConfigError):  # of a later version
        state = read_tail(file) if file.exists() else fold(CopiedLogs(store.backend, run).tail())
        at = state.stages.get(stage)
        return at.counted(present()) if at and at.total else None
    return None


def counted(stage: Counted) -> str:
    """Return a stage's progress as text, such as `40/500 steps`, or ""."""
    return "" if stage["step"] is None else f"{stage['step']}/{stage['of']} {stage['unit']}"


def _row(at: RunningStage) -> tuple[str, ...]:
    left = "" if at["eta"] is None else clock_face(at["eta"])
    return (
        at["run"], at["recipe"] or "?", at["stage"], counted(at), left, at["host"], str(at["pid"]), at["since"],
    )  # fmt: skip
