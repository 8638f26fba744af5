"""`trnflow status`: list the stages that run now, on any machine that uses the store, by their leases. Neither Prefect
nor MLflow is asked."""

from __future__ import annotations

import contextlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.output import emit
from trnflow.flows.display import report
from trnflow.flows.display.progress import clock_face
from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import Counted, Journal
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.events import log_file, read_tail
from trnflow.tasks.events.state import present
from trnflow.tasks.store import Store, made_store
from trnflow.tasks.store.lease import Holder, live_leases


def add_commands(sub: Any, store: ArgumentParser) -> None:
    add_command(sub, "status", status, store, "list the stages that run now, on any machine")


def status(options: Namespace) -> int:
    """Print a line for each stage that runs now."""
    found = running(made_store(options.store))
    rows = [("run", "recipe", "stage", "progress", "left", "host", "pid", "since"), *map(_row, found)]
    emit(options, {"runs": found}, *(report.aligned(rows) if found else ["nothing runs"]))
    return 0


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

    Progress is that of the run's event log if the run is of this machine, else as old as the last heartbeat, at most a
    third of `store.lease_ttl_seconds`. It is None before the first report.
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
    if not file.exists():
        return None
    with contextlib.suppress(ConfigError):  # of a later version
        state = read_tail(file).stages.get(stage)
        return state.counted(present()) if state and state.total else None
    return None


def counted(stage: Counted) -> str:
    """Return a stage's progress as text, such as `40/500 steps`, or ""."""
    return "" if stage["step"] is None else f"{stage['step']}/{stage['of']} {stage['unit']}"


def _row(at: RunningStage) -> tuple[str, ...]:
    left = "" if at["eta"] is None else clock_face(at["eta"])
    return (
        at["run"], at["recipe"] or "?", at["stage"], counted(at), left, at["host"], str(at["pid"]), at["since"],
    )  # fmt: skip
