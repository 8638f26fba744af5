"""`trnflow status`: list the stages that run now, on any machine that uses the store, by their leases. Neither Prefect
nor MLflow is asked."""

from __future__ import annotations

import contextlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from trnflow.flows.cli.arguments import OR_RECIPE, RUN_NAMES, add_command
from trnflow.flows.cli.output import emit
from trnflow.flows.cli.past_store import past_run, past_store
from trnflow.flows.display import report
from trnflow.flows.display.progress import Progress, clock_face
from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import Counted, Journal
from trnflow.tasks.errors import ConfigError, StoreError
from trnflow.tasks.events import fold, log_file, read_tail
from trnflow.tasks.events.following import Follower
from trnflow.tasks.events.log_copy import CopiedLogs
from trnflow.tasks.events.retention import PREVIEW, written_runs
from trnflow.tasks.events.state import present
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import Holder, live_leases


def add_commands(sub: Any, store: ArgumentParser) -> None:
    parser = add_command(sub, "status", status, store, "list the stages that run now, on any machine")
    parser.add_argument("run", metavar="RUN", nargs="?", help=f"of one run: {RUN_NAMES}; {OR_RECIPE}")
    parser.add_argument(
        "--follow", action="store_true", help="show the progress of the run until it ends, as `run` does"
    )


def status(options: Namespace) -> int:
    """Print a line for each stage that runs now; with --follow the progress of a run, by default the newest in progress, until
    it ends, and then 0 if it completed, else 1. Raises ConfigError."""
    store = past_store(options.store, options.run)
    stages = running(store)
    live = [one["run"] for one in stages if not one["run"].endswith(PREVIEW)]
    if options.run:
        known = {*live, *written_runs(store.home), *store.backend.folders("logs")}
        run = past_run(store, options.run, known)
        stages = [one for one in stages if one["run"] == run]
    elif options.follow:
        if not live:
            raise ConfigError("no run is in progress", "name one: `trnflow runs` lists them")
        run = max(live)
    if options.follow:
        return follow(store, run, options)
    rows = [("run", "recipe", "stage", "progress", "left", "host", "pid", "since"), *map(_row, stages)]
    nothing = f"no stage of {run} runs now" if options.run else "nothing runs"
    emit(options, {"runs": stages}, *(report.aligned(rows) if stages else [nothing]))
    return 0


def follow(store: Store, run: str, options: Namespace) -> int:
    """Show the progress of a run until it ends or is silent; return 0 if it completed, else 1. Raises ConfigError, StoreError."""
    follower = Follower(store, run)
    with Progress() as view:
        for event in follower.events():
            view.read(event, follower.state)
    error = follower.state.error
    document = {"run": run, "outcome": follower.outcome, "error": error}
    why = [] if error is None else [f"error: {error['message']}", f"  fix: {error['fix']}"]
    emit(options, document, f"run {run}: {follower.outcome}", *why)
    return int(follower.outcome != "completed")


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
    with contextlib.suppress(ConfigError, StoreError):  # of a later version; a copy that can't be read
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
