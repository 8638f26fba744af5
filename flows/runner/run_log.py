"""What a run writes in its event log about itself and its steps."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.claim import WAITS
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.log_copy import LogCopy
from trnflow.flows.runner.plan import Options, Step
from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import StoreError, TrnflowError, is_interruption, unexpected
from trnflow.tasks.events import EventLog, Reader, unsent_file
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import Ledger, read_ledger
from trnflow.tasks.tracking import MlflowDelivery, destination, tracking_address
from trnflow.tasks.tracking.delivery import WAIT_SECONDS

ON_RECORD = ("run", "retrain", "trial")
"""Kinds of runs that get a run record when they end."""
TRACKED = (*ON_RECORD, "sweep", "mirror")
"""Kinds of runs that MLflow shows."""
PLOTS = (".png", ".json", ".jsonl", ".html")
PLOT_BYTES = 20_000_000
"""Larger files are not copied for MLflow."""


@contextmanager
def begin_log(
    context: RunContext, options: Options, *, tags: dict[str, str] | None = None, **more: Json
) -> Iterator[None]:
    """Context in which the events of a run are written to its file; see `EventLog.writing`. Of a run on record, the store
    gets a copy.

    Args:
        tags: Of the run in MLflow.
        more: Further fields of `run_begun`.

    Raises:
        ConfigError: A variable in `tracking.uri` is not set.
    """
    recipe, log = context.recipe, context.log
    tracking: Meta | None = None
    if recipe.tracking.enabled and context.kind in TRACKED:
        where = context.store.home, recipe.tracking.uri, recipe.folder("tracking.uri")
        tracking = {**destination(*where, recipe.tracking.experiment), "tags": tags or {}}
    is_copied = context.kind in ON_RECORD and not log.is_open
    copies = [LogCopy(context.store, context.run)] if is_copied else []
    writing = log.writing(
        context.store.home,
        context.run,
        recipe=recipe.name,
        kind=context.kind,
        parent=context.parent,
        settings=recipe.to_json(),
        options=options.to_json(),
        store=context.store.root,
        host={"name": socket.gethostname(), "python": platform.python_version(), "cores": os.cpu_count()},
        checkout=checkout_state(),
        price_per_hour=recipe.price_per_hour,
        tracking=tracking,
        **more,
    )
    with log.also(*copies), writing:
        yield


def write_plan(log: EventLog, steps: list[Step]) -> None:
    log.write("planned", stages=[step.to_json() for step in steps])


def write_step(context: RunContext, step: Step) -> None:
    context.log.write(
        "stage_ended",
        stage=step.name,
        action=step.action,
        key=step.key,
        artifact=step.artifact.digest if step.artifact else None,
        seconds=step.seconds,
        metrics=step.metrics,
        figures=step.figures,
        facts=step.facts,
        why=step.why,
        **(_for_mlflow(context, step) if context.recipe.tracking.enabled and step.artifact else {}),
    )


def _for_mlflow(context: RunContext, step: Step) -> Meta:
    """Return what MLflow shows of a step's artifact, and copy its plots, which garbage collection may remove first."""
    assert step.artifact is not None
    fields: Meta = {"kind": step.artifact.kind}
    lengths = step.artifact.meta.get("row_lengths", {})
    if lengths:
        fields["lengths"] = {split: counted["rows"] for split, counted in lengths.items()}
    files = step.artifact.files if step.action == "ran" and step.node.stage.plots else ()
    plots = tuple(file for file in files if Path(file.path).suffix in PLOTS and file.size <= PLOT_BYTES)
    if plots:
        folder = unsent_file(context.store.home, context.run).parent / step.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            context.store.copy_files(replace(step.artifact, files=plots), folder)
            fields["plots"] = sorted(file.path for file in plots)
        except (OSError, StoreError) as error:
            context.log.note(f"MLflow will not have the plots of {step.name}: {error}", level="warning")
    return fields


def mlflow_delivery(recipe: Recipe, store: Store, *, wait_seconds: float = WAIT_SECONDS) -> tuple[Reader, ...]:
    """Return the reader that has a run's events sent to MLflow; none where `tracking.enabled` is false. wait_seconds: the
    longest wait when the run ends. Raises ConfigError if a variable in `tracking.uri` is not set."""
    if not recipe.tracking.enabled:
        return ()
    address = tracking_address(store.home, recipe.tracking.uri, recipe.folder("tracking.uri"))
    return (MlflowDelivery(store.home, address, wait_seconds=wait_seconds),)


def end_log(context: RunContext, error: TrnflowError | None, notes: list[str]) -> list[str]:
    """End the log as `EventLog.end`, after the present champion of a run that MLflow shows: its alias there may be
    behind the store."""
    recipe, log = context.recipe, context.log
    is_shown = error is not None or any(stage.begun is not None for stage in log.state.stages.values())
    if is_shown and recipe.tracking.enabled and context.kind in ON_RECORD:
        with suppress(StoreError, FileNotFoundError):
            ledger = read_ledger(context.store, recipe.name)
            if ledger.champion is not None:
                write_champion(log, ledger)
    return log.end(error, notes)


def write_champion(
    log: EventLog,
    ledger: Ledger,
    *,
    challenger: str | None = None,
    comparison: Meta | None = None,
    frozen: str | None = None,
) -> None:
    """Write a ledger's champion; see the event `champion`."""
    champion = ledger.champion
    assert champion is not None
    log.write(
        "champion",
        recipe=ledger.recipe,
        task=champion["task"],
        number=champion["number"],
        series=ledger.stands["series"],
        created=champion["created"],
        champion=champion["champion"],
        challenger=challenger,
        comparison=comparison or {},
        frozen=frozen,
    )


def write_failure(log: EventLog, stage: str, error: BaseException) -> None:
    known = error if isinstance(error, TrnflowError) else unexpected(error) if isinstance(error, Exception) else None
    document = known.to_json() if known else {"type": type(error).__name__, "message": str(error), "fix": ""}
    log.write("stage_failed", stage=stage, error=document, stopped=is_interruption(error))


def say(log: EventLog, stage: str, text: str) -> None:
    """Write a message for the user about a stage; nothing for an empty text."""
    if text.startswith(WAITS):
        log.write("waits", stage=stage, holder=text.removeprefix(WAITS).strip())
    else:
        log.note(text, stage=stage)


def checkout_state() -> Meta | None:
    """Return {"commit": the git commit of the code, "dirty": whether tracked files have uncommitted changes}; None
    outside a checkout, or if git can't be run."""
    folder = Path(__file__).parent
    command = [
        "git",
        "--no-optional-locks",
        "-C",
        str(folder),
        "status",
        "--porcelain=v2",
        "--branch",
        "--untracked-files=no",
    ]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid")), None)
    return {"commit": commit, "dirty": any(not line.startswith("#") for line in lines)}
