"""`trnflow status`: list the stages that run now, on any machine that uses the store, by their leases. Neither Prefect
nor MLflow is asked."""

from __future__ import annotations

import contextlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from trnflow.flows.cli.arguments import add_command, store_of
from trnflow.flows.cli.output import emit
from trnflow.flows.display import report
from trnflow.flows.display.progress import clock_face
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.events import log_file, read_tail
from trnflow.tasks.events.state import present
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import Holder, live_leases


def add_commands(sub: Any, store: ArgumentParser) -> None:
    add_command(sub, "status", status, store, "list the stages that run now, on any machine")


def status(options: Namespace) -> int:
    """Print a line for each stage that runs now."""
    found = running(store_of(options))
    rows = [("run", "recipe", "stage", "progress", "left", "host", "pid", "since"), *map(_row, found)]
    emit(options, {"runs": found}, report.aligned(rows) if found else "nothing runs")
    return 0


def running(store: Store) -> list[Meta]:
    """Return the stages that run now, the oldest first: run, recipe, stage, step, of, unit, eta (seconds), host, pid,
    since.

    Progress is that of the run's event log if the run is of this machine, else as old as the last heartbeat, at most a
    third of `store.lease_ttl_seconds`. It is None before the first report.
    """
    found = []
    for holder, attempt, progress in leases_of_stages(store):
        counted = _logged_progress(store, holder.run, attempt["stage"]) or progress
        told = {name: counted.get(name) for name in ("step", "of", "unit", "eta")}
        found.append(
            {
                "run": holder.run, "recipe": attempt.get("recipe") or None, "stage": attempt["stage"], **told,
                "host": holder.process.host, "pid": holder.process.pid, "since": holder.since,
            }
        )  # fmt: skip
    return sorted(found, key=lambda one: str(one["since"]))


def leases_of_stages(store: Store, *, silent: bool = False) -> Iterator[tuple[Holder, Meta, Meta]]:
    """Yield (lease, journal, progress) of each stage that runs now. silent: also leases without recent heartbeats."""
    for key, holder, progress in live_leases(store.backend, silent=silent):
        attempt = store.attempt(key, holder.attempt)
        if (
            "stage" in attempt
        ):  # else the lease is that of a retraining or a sweep, or of a stage that is about to begin
            yield holder, attempt, progress


def _logged_progress(store: Store, run: str, stage: str) -> Meta | None:
    """Return the progress of a stage by the event log of its run, or None."""
    file = log_file(store.home, run)
    if not file.exists():
        return None
    with contextlib.suppress(ConfigError):  # of a later version
        state = read_tail(file).stages.get(stage)
        return state.counted(present()) if state and state.total else None
    return None


def counted(one: Meta) -> str:
    """Return a stage's progress as text, such as `40/500 steps`, or ""."""
    return "" if one["step"] is None else f"{one['step']}/{one['of']} {one['unit']}"


def _row(one: Meta) -> tuple[str, ...]:
    left = "" if one["eta"] is None else clock_face(one["eta"])
    return (
        one["run"], one["recipe"] or "?", one["stage"], counted(one), left, one["host"], str(one["pid"]), one["since"],
    )  # fmt: skip
