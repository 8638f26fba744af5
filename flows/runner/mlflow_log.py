"""What a run's event log has for MLflow alone, and the readers that trackers get it by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.plan import Step
from trnflow.flows.runner.work_folders import workplace
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.row_format import ROW_FORMAT_FILE, read_row_format
from trnflow.tasks.errors import StoreError, TrnflowError
from trnflow.tasks.events import EventLog, Reader, unsent_file
from trnflow.tasks.prediction.prompts import columns_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import Ledger, read_ledger
from trnflow.tasks.tracking import MlflowDelivery, destination, tracking_address
from trnflow.tasks.tracking.client_runs import ClientRuns
from trnflow.tasks.tracking.delivery import WAIT_SECONDS
from trnflow.tasks.tracking.tensorboard import TensorBoardFiles

ON_RECORD = ("run", "retrain", "trial")
"""Kinds of runs that get a run record when they end."""
TRACKED = (*ON_RECORD, "sweep", "mirror")
"""Kinds of runs that MLflow shows."""
ALSO: dict[str, Callable[[Path], Reader]] = {
    "tensorboard": TensorBoardFiles,
    "wandb": partial(ClientRuns, package="wandb"),
    "trackio": partial(ClientRuns, package="trackio"),
}
"""{name in `tracking.also`: reader of a run's events for it}."""
PLOTS = (".png", ".json", ".jsonl", ".html")
PLOT_BYTES = 20_000_000
"""Larger files are not copied."""


def destination_of(context: RunContext, tags: dict[str, str]) -> Meta | None:
    """Return `tracking` of the event `run_begun`. Raises ConfigError if a variable in `tracking.uri` is not set."""
    recipe = context.recipe
    if not recipe.tracking.enabled or context.kind not in TRACKED:
        return None
    uri, folder = recipe.tracking.uri, recipe.folder("tracking.uri")
    return {**destination(context.store.home, uri, folder, recipe.tracking.experiment), "tags": tags}


def for_mlflow(context: RunContext, step: Step) -> Meta:
    """Return the fields of `stage_ended` that MLflow needs, and copy the plots, which garbage collection may remove
    first."""
    if not context.recipe.tracking.enabled or step.artifact is None:
        return {}
    fields: Meta = {"kind": step.artifact.kind}
    if own := step.artifact.meta.get("own"):
        fields["own"] = own
    if step.chosen and step.node.stage.role == "training":
        fields["chosen"] = step.chosen
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


def trackers(recipe: Recipe, store: Store, *, wait_seconds: float = WAIT_SECONDS) -> tuple[Reader, ...]:
    """Return the readers of a run's events for MLflow, unless `tracking.enabled` is false, and for `tracking.also`.

    wait_seconds: the longest wait for MLflow when the run ends. Raises ConfigError if a variable in `tracking.uri` is not
    set, MissingDependency without a tracker's package.
    """
    also = tuple(ALSO[name](store.home) for name in dict.fromkeys(recipe.tracking.also))
    if not recipe.tracking.enabled:
        return also
    address = tracking_address(store.home, recipe.tracking.uri, recipe.folder("tracking.uri"))
    return (MlflowDelivery(store.home, address, wait_seconds=wait_seconds), *also)


def end_log(context: RunContext, error: TrnflowError | None, notes: list[str]) -> list[str]:
    """End the log as `EventLog.end`, after the present champion of a run that MLflow shows: its alias there may be
    behind the store."""
    recipe, log = context.recipe, context.log
    is_shown = error is not None or any(stage.begun is not None for stage in log.state.stages.values())
    if is_shown and recipe.tracking.enabled and context.kind in ON_RECORD:
        with suppress(StoreError, FileNotFoundError):
            ledger = read_ledger(context.store, recipe.name)
            if ledger.champion is not None:
                write_champion(log, context.store, ledger)
    return log.end(error, notes)


def write_champion(
    log: EventLog,
    store: Store,
    ledger: Ledger,
    *,
    challenger: str | None = None,
    comparison: Meta | None = None,
    frozen: str | None = None,
) -> None:
    """Write a ledger's champion; the rest: see `Champion`."""
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
        why=champion["why"],
        metrics=_metrics(store, champion["evaluation"]),
        **_columns(store, str(champion["champion"])),
    )


def _metrics(store: Store, evaluation: str | None) -> dict[str, float]:
    """Return the single figures of an evaluation; none if the store has lost it."""
    with suppress(TrnflowError):
        metrics = store.artifact(evaluation).meta.get("metrics") if evaluation else None
        known = metrics if isinstance(metrics, dict) else {}  # a manifest may be forged
        return {name: value for name, value in known.items() if isinstance(value, int | float)}
    return {}


def _columns(store: Store, model: str) -> Meta:
    """Return the columns of a model's rows as `Champion` has them; none if the store has lost its `trnflow.json`."""
    with suppress(TrnflowError), workplace(store.home, "columns") as work:
        artifact = store.artifact(model)
        files = tuple(file for file in artifact.files if file.path == ROW_FORMAT_FILE)
        folder = store.link_files(replace(artifact, files=files), work / "model")
        columns, optional = columns_of(read_row_format(folder))
        return {"columns": columns, "optional": optional}
    return {}
