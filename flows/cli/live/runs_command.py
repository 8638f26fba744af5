"""`trnflow runs`: list the runs in progress and the past runs of a store, without previews and plans."""

from __future__ import annotations

import argparse
from argparse import Namespace
from datetime import UTC, datetime
from typing import Any

from trnflow.flows.cli.history_commands import ACTED, brief, run_ids, store_of
from trnflow.flows.cli.live.status_command import counted, running
from trnflow.flows.cli.output import emit
from trnflow.flows.display import report
from trnflow.flows.runner.attempts import PREVIEW
from trnflow.tasks.artifact import Meta
from trnflow.tasks.store import Store

LIVE = ("stage", "step", "of", "unit", "eta")
"""Fields of a run that only a run in progress has."""
HEAD = ("run", "recipe", "outcome", "ended", "seconds", "hit", "ran", "key figures")


def add_commands(sub: Any, store: argparse.ArgumentParser) -> None:
    listing = sub.add_parser("runs", parents=[store], help="list runs, newest first; those in progress, too")
    listing.set_defaults(command=runs)


def runs(options: Namespace) -> int:
    """Print a line for each run: those in progress, then the past ones, each newest first."""
    store = store_of(options)
    found = listed(store)
    emit(options, {"runs": found}, report.aligned([HEAD, *map(_row, found)]))
    return 0


def listed(store: Store) -> list[Meta]:
    """Return a dict for each run, in the order of `runs`: run, recipe, outcome, seconds (of a run in progress since the
    time in its id).

    Past runs have ended, hit, ran, skip (numbers of stages) and metrics; runs in progress stage, step, of, unit and eta
    (seconds). The others' fields are None, metrics {}.
    """
    now = running(store)  # first: a run that ends meanwhile is then on record
    past = run_ids(store)
    newest = {one["run"]: one for one in now if not one["run"].endswith(PREVIEW)}
    live = [_live(one) for run, one in newest.items() if run not in past]
    ended = [brief(run, store.run(run) or {}) | dict.fromkeys(LIVE) for run in past]
    return sorted(live, key=lambda one: str(one["run"]), reverse=True) + ended


def _live(one: Meta) -> Meta:
    now = {name: one[name] for name in LIVE}
    unknown = dict.fromkeys(("ended", *ACTED))
    seconds = _seconds_since(one["run"])
    return {"run": one["run"], "recipe": one["recipe"], "outcome": "running", "seconds": seconds, **unknown} | {
        "metrics": {}, **now,
    }  # fmt: skip


def _seconds_since(run: str) -> float | None:
    """Return the seconds since the time in a run's id; None if it has none."""
    try:
        begun = datetime.strptime(run.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return round((datetime.now(UTC) - begun).total_seconds(), 3)


def _row(one: Meta) -> tuple[str, ...]:
    is_live = one["outcome"] == "running"
    figures = f"{one['stage']} {counted(one)}".strip() if is_live else report.figures(one["metrics"])
    shown = (one["recipe"], one["outcome"], one["ended"], _seconds(one["seconds"]), one["hit"], one["ran"])
    return (one["run"], *("" if is_live and value is None else str(value) for value in shown), figures)


def _seconds(value: float | None) -> str | None:
    return None if value is None else report.seconds(value)
