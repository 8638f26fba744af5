"""`trnflow runs`: list the runs in progress, past and killed runs of a store, without previews and plans."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.history_commands import RunSummary, run_summary
from trnflow.flows.cli.live.status_command import RunningStage, counted, running
from trnflow.flows.cli.output import emit, say
from trnflow.flows.cli.past_store import past_store
from trnflow.flows.display import report
from trnflow.flows.jobs.listing import jobs_by_run
from trnflow.flows.runner.mlflow_log import ON_RECORD
from trnflow.tasks.documents import Counted
from trnflow.tasks.errors import ConfigError, StoreError
from trnflow.tasks.events import RunState, fold, is_killed, log_file, logged_runs, read_log
from trnflow.tasks.events.log_copy import CopiedLogs
from trnflow.tasks.events.retention import PREVIEW, written_runs
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import is_ahead
from trnflow.tasks.system.redaction import scrub

HEAD = ("run", "recipe", "outcome", "ended", "seconds", "hit", "ran", "key figures")


def add_commands(sub: Any, store: ArgumentParser) -> None:
    add_command(sub, "runs", runs, store, "list runs, newest first; those in progress, too")


def runs(options: Namespace) -> int:
    """Print a line for each run: those in progress, then the past ones, each newest first."""
    found = list_runs(past_store(options.store))
    emit(options, {"runs": found}, *report.aligned([HEAD, *map(_row, found)]))
    return 0


class ListedRun(RunSummary, Counted):
    """seconds: of a run in progress since the time in its id. stage and its progress: where a run is, or was killed. job: whose
    part of another run it is."""

    stage: str | None
    job: str | None


NOWHERE = Counted(step=None, of=None, unit=None, eta=None)


def list_runs(store: Store) -> list[ListedRun]:
    """Return all runs, in the order of `runs`."""
    now = running(store)  # first: a run that ends meanwhile is then on record
    newest = {one["run"]: one for one in now if not one["run"].endswith(PREVIEW)}
    copied = list(copied_runs(store, {*store.run_ids(), *newest, *written_runs(store.home)}))
    past = store.run_ids()
    live = [_live(one) for run, one in newest.items() if run not in past]
    ended: list[ListedRun] = [
        {**run_summary(run, store.run(run) or {}), "stage": None, "job": None, **NOWHERE} for run in past
    ]
    ended += [logged_summary(state) for state in killed_runs(store, {*past, *newest})]
    for state in copied:
        if state.run not in past:
            (live if state.outcome == "running" else ended).append(logged_summary(state))
    jobs = jobs_by_run(store)
    for listed in (*live, *ended):
        listed["job"] = jobs.get(listed["run"])
    return _newest_first(live) + _newest_first(ended)


def _newest_first(runs: list[ListedRun]) -> list[ListedRun]:
    return sorted(runs, key=lambda listed: (not is_ahead(listed["run"]), listed["run"]), reverse=True)


def killed_runs(store: Store, known: set[str]) -> Iterator[RunState]:
    """Yield the runs of this machine whose event log has neither writer nor end."""
    for run in logged_runs(store.home):
        file = log_file(store.home, run)
        if run in known or run.endswith(PREVIEW) or not file.exists() or not is_killed(file):
            continue
        try:
            state = read_log(file)
        except ConfigError as error:
            say(error)
            continue
        if state.skipped:
            say(f"{state.skipped} lines of {file} are no events, and were skipped")
        if state.outcome == "killed" and state.kind in ON_RECORD and state.store == scrub(store.root):
            yield state


def copied_runs(store: Store, known: set[str]) -> Iterator[RunState]:
    """Yield the runs of other machines that are not on record, by the store's copy of their logs: in progress, or killed."""
    for run in sorted({*store.backend.folders("logs")} - known):
        copy, state = CopiedLogs(store.backend, run), RunState()
        try:
            # else it has ended, and is of a kind without a record
            if fold(copy.tail()).ended is None:
                fold(copy.events(), state)
        except (ConfigError, StoreError) as error:
            say(error)
            continue
        if state.run == run:
            state.outcome = "killed" if copy.is_silent else "running"
            yield state


def logged_summary(state: RunState) -> ListedRun:
    """Return the facts of a run that is not on record. `ended`: of a killed one the time of its last event."""
    at = next((stage for stage in state.stages.values() if stage.action == "running"), None)
    ended = datetime.fromtimestamp(state.last, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    document = {
        "recipe": state.recipe, "outcome": state.outcome, "stages": [vars(stage) for stage in state.stages.values()],
        "ended": ended if state.outcome == "killed" else None,
        "seconds": None if state.begun is None else round(state.last - state.begun, 3),
    }  # fmt: skip
    place = at.counted(state.last) if at and at.total else NOWHERE
    return {**run_summary(state.run, document), "stage": at.stage if at else None, "job": None, **place, "eta": None}


def place_of(listed: ListedRun) -> str:
    """Return where a run in progress is, or a killed one ended: `train 40/500 steps`."""
    return f"{listed['stage']} {counted(listed)}".strip()


def _live(at: RunningStage) -> ListedRun:
    return ListedRun(
        run=at["run"], recipe=at["recipe"], outcome="running", ended=None, seconds=_seconds_since(at["run"]),
        hit=None, ran=None, skip=None, metrics={}, stage=at["stage"], job=None,
        step=at["step"], of=at["of"], unit=at["unit"], eta=at["eta"],
    )  # fmt: skip


def _seconds_since(run: str) -> float | None:
    """Return the seconds since the time in a run's id; None if it has none."""
    try:
        begun = datetime.strptime(run.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return round((datetime.now(UTC) - begun).total_seconds(), 3)


def _row(listed: ListedRun) -> tuple[str, ...]:
    is_live = listed["outcome"] == "running"
    figures = report.figures(listed["metrics"]) if listed["stage"] is None else place_of(listed)
    figures = f"dated in the future; {figures}" if is_ahead(listed["run"]) else figures
    figures = f"job {listed['job']}; {figures}" if listed["job"] else figures
    shown = (
        listed["recipe"], listed["outcome"], listed["ended"], _seconds(listed["seconds"]), listed["hit"], listed["ran"],
    )  # fmt: skip
    return (listed["run"], *("" if is_live and value is None else str(value) for value in shown), figures)


def _seconds(value: float | None) -> str | None:
    return None if value is None else report.seconds(value)
