"""`trnflow status`: list the stages that run now, on any machine that uses the store.

A stage that runs is found by its lease, a file in the store by which a process says that it makes the stage's result.
The process renews the lease by heartbeats. Neither Prefect nor MLflow is asked.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from trnflow.flows.cli.history_commands import store_of
from trnflow.flows.cli.output import emit
from trnflow.flows.display import report
from trnflow.flows.display.progress import clock_face
from trnflow.tasks.artifact import Meta
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import Holder, live_leases


def add_commands(sub: Any, store: argparse.ArgumentParser) -> None:
    found = sub.add_parser("status", parents=[store], help="list the stages that run now, on any machine")
    found.set_defaults(command=status)


def status(options: Namespace) -> int:
    """Print one line for each stage that runs now, on any machine that uses the store: the run's id, recipe, stage,
    progress, time left, machine, process id and start; return exit code 0."""
    found = running(store_of(options))
    rows = [("run", "recipe", "stage", "progress", "left", "host", "pid", "since"), *map(_row, found)]
    emit(options, {"runs": found}, report.aligned(rows) if found else "nothing runs")
    return 0


def running(store: Store) -> list[Meta]:
    """Return the stages that run now, the one that began first at the head of the list.

    Each is a dict: "run": the run's id; "recipe": the recipe's name, or None; "stage": the stage's name; "step": how
    many units of work are done; "of": how many there are; "unit": the name of a unit, such as `steps`; "eta": the
    seconds left; "host", "pid": the machine and process that run the pipeline; "since": when the process
    took the stage's lease (the file by which it says that it makes the stage's result).

    "step", "of" and "unit" are None if the stage has reported no progress, "eta" also while it is unknown. The four are
    as old as the last heartbeat of the process, which writes a heartbeat every third of `store.lease_ttl_seconds`.
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
    """Yield (lease, journal, progress) of each stage that runs now.

    lease: the entry in the store by which a process says that it makes the stage's result; names the run and the
    process. journal: the store's document of this try to run the stage; names the stage, the recipe and the start.
    progress: how far the stage was at the last heartbeat: "step" of "of" units of work (named "unit") done, "eta"
    seconds left.

    silent: yield also leases without recent heartbeats, whose processes may be dead."""
    for key, holder, progress in live_leases(store.backend, silent=silent):
        attempt = store.attempt(key, holder.attempt)
        if (
            "stage" in attempt
        ):  # else the lease is that of a retraining or a sweep, or of a stage that is about to begin
            yield holder, attempt, progress


def counted(one: Meta) -> str:
    """Return the progress of a stage as text, such as `40/500 steps`; empty when the stage has reported none. one: an
    entry of the list that `running` returns, with `step`, `of` and `unit`."""
    return "" if one["step"] is None else f"{one['step']}/{one['of']} {one['unit']}"


def _row(one: Meta) -> tuple[str, ...]:
    left = "" if one["eta"] is None else clock_face(one["eta"])
    return (
        one["run"], one["recipe"] or "?", one["stage"], counted(one), left, one["host"], str(one["pid"]), one["since"],
    )  # fmt: skip
