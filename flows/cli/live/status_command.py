"""`trnflow status`: list the stages that run now, from the leases and attempts in the store. Asks neither Prefect nor MLflow."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from flows.cli.history_commands import store_of
from flows.cli.output import emit
from flows.display import report
from flows.display.progress import clock_face
from tasks.artifact import Meta
from tasks.store import Store
from tasks.store.lease import Holder, live_leases


def add_commands(sub: Any, store: argparse.ArgumentParser) -> None:
    """Add `status` to the parser. sub: argparse's collection of commands; store: the arguments of commands that read a
    store."""
    found = sub.add_parser("status", parents=[store], help="list the stages that run now, on any machine")
    found.set_defaults(command=status)


def status(options: Namespace) -> int:
    """Print one line for each stage that runs now; return exit code 0."""
    found = running(store_of(options))
    rows = [("run", "recipe", "stage", "progress", "left", "host", "pid", "since"), *map(_row, found)]
    emit(options, {"runs": found}, report.aligned(rows) if found else "nothing runs")
    return 0


def running(store: Store) -> list[Meta]:
    """Return the stages that run now, oldest first, each as {run, recipe, stage, step, of, unit, eta, host, pid, since}.

    `step` of `of` is in `unit`, and `eta` in seconds; they are None where the stage has not said, and as old as the last
    heartbeat (a third of `store.lease_ttl_seconds`).
    """
    found = []
    for holder, attempt, progress in leases_of_stages(store):
        told = {name: progress.get(name) for name in ("step", "of", "unit", "eta")}
        found.append(
            {
                "run": holder.run, "recipe": attempt.get("recipe") or None, "stage": attempt["stage"], **told,
                "host": holder.process.host, "pid": holder.process.pid, "since": holder.since,
            }
        )  # fmt: skip
    return sorted(found, key=lambda one: str(one["since"]))


def leases_of_stages(store: Store, *, silent: bool = False) -> Iterator[tuple[Holder, Meta, Meta]]:
    """Yield (lease, journal of the attempt, progress) of each stage that runs now. silent: as of `live_leases`."""
    for key, holder, progress in live_leases(store.backend, silent=silent):
        attempt = store.attempt(key, holder.attempt)
        if (
            "stage" in attempt
        ):  # else the lease is that of a retraining or a sweep, or of a stage that is about to begin
            yield holder, attempt, progress


def counted(one: Meta) -> str:
    """Return the progress of a stage as text, such as `40/500 steps`; empty when the stage has told none. one: an entry of
    `running`."""
    return "" if one["step"] is None else f"{one['step']}/{one['of']} {one['unit']}"


def _row(one: Meta) -> tuple[str, ...]:
    left = "" if one["eta"] is None else clock_face(one["eta"])
    return (
        one["run"], one["recipe"] or "?", one["stage"], counted(one), left, one["host"], str(one["pid"]), one["since"],
    )  # fmt: skip
