"""Record a run's settings, metrics, figures, plots, digests and data sources in MLflow, as a reader of its events.

Events are written to a spool, a file on disk in which they wait until another process has uploaded them to MLflow.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from trnflow.flows.finetune import PLOTTED, ROLES
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import open_store
from trnflow.flows.runner.run import Result
from trnflow.flows.runner.run_log import checkout_state
from trnflow.flows.services.pages import tracking_uri
from trnflow.tasks.errors import Interrupted, StoreError
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.events.event_types import StageEnded
from trnflow.tasks.store.ledger import Ledger, read_ledger
from trnflow.tasks.system.redaction import hide_secrets
from trnflow.tasks.tracking import Tracker

PLOTS = (".png", ".json", ".jsonl", ".html")


class Tracking(Reader):
    """A reader of a run's events that records the run in MLflow. Does nothing when `tracking.enabled` is false.

    Recording begins when the first stage starts to run, or when the run fails; the cached stages before that are then
    recorded too. A run whose stages are all cached adds nothing to MLflow and starts no upload. As a context manager,
    the reader marks the run in MLflow as FAILED or KILLED when an exception leaves the context.

    Args:
        recipe: The recipe; its section `tracking` names the MLflow server and experiment.
        home: The folder of local state (TRNFLOW_HOME), which holds the spool: the file in which the recorded
            events wait until another process has uploaded them to MLflow.
        run: The id of the run.
        tags: Further tags of the run in MLflow.
    """

    def __init__(self, recipe: Recipe, home: Path, run: str, tags: dict[str, str] | None = None) -> None:
        self.run = run
        self._more_tags = tags
        self._recipe, self._home = recipe, home
        self._store = open_store(recipe)
        self._tracker: Tracker | None = None
        self._hits: list[StageEnded] = []

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "stage_begun" and self._begin():
            assert self._tracker is not None
            self._tracker.stage_started(event["stage"], event["key"], event["settings"])
        elif event["event"] == "metrics" and self._tracker:
            self._tracker.metrics(event["stage"], event["step"], event["values"], event["time"])
        elif event["event"] == "stage_ended" and event["artifact"] is not None:
            if self._tracker is None:
                self._hits.append(event)
            else:
                self._record_end(self._tracker, event, event["artifact"])

    def _record_end(self, tracker: Tracker, event: StageEnded, digest: str) -> None:
        """Record a stage's results: with rows also the sources, of a stage that plots its plots and reports."""
        artifact = self._store.artifact(digest)
        if event["stage"] == ROLES["rows"]:
            for setting, source in sources(self._recipe):
                tracker.dataset(source, digest, note=f"{setting}={source}", context="training")
        lengths = artifact.meta.get("row_lengths", {})
        with tempfile.TemporaryDirectory() as folder:
            plots: tuple[Path, ...] = ()
            if event["stage"] in PLOTTED:
                self._store.copy_files(artifact, Path(folder))
                plots = tuple(path for path in sorted(Path(folder).iterdir()) if path.suffix in PLOTS)
            tracker.stage_ended(
                event["stage"],
                action=event["action"],
                key=event["key"],
                artifact=digest,
                seconds=event["seconds"],
                metrics=event["metrics"],
                figures=event["figures"],
                plots=plots,
                lengths={split: counted["rows"] for split, counted in lengths.items()},
            )

    def finish(self, result: Result) -> Result:
        """End the run in MLflow as FINISHED, FAILED or KILLED (interrupted), and return `result`.

        Waits up to 20 s for the upload, 2 s if the run was interrupted; the upload continues after that. If MLflow
        can't be reached or events were lost, a note is added to the result."""
        if result.error:
            self._begin()
        if self._tracker and self._tracker.is_open:
            self._champion()
            stopped = isinstance(result.error, Interrupted)
            status = "KILLED" if stopped else "FAILED" if result.error else "FINISHED"
            warning = self._tracker.finish(status, wait_seconds=2.0 if stopped else 20.0)
            if warning:
                result.notes.append(warning)
        return result

    def _champion(self) -> None:
        """Record the present champion, so that an alias in MLflow that is behind the store is put right."""
        assert self._tracker is not None
        with contextlib.suppress(StoreError, FileNotFoundError):
            ledger = read_ledger(self._store, self._recipe.name)
            if ledger.champion is not None:
                record_champion(self._tracker, ledger, None, {})

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self._begin()
        if self._tracker:
            self._tracker.__exit__(kind, error, at)

    def _begin(self) -> bool:
        """Begin to record the run, unless that was done before; return whether the run is recorded."""
        if self._tracker is None:
            self._tracker = new_tracker(self._recipe, self._home, self.run, self._more_tags)
            if self._tracker:
                for hit in self._hits:
                    self._record_end(self._tracker, hit, str(hit["artifact"]))
            self._hits = []
        return self._tracker is not None


def record_champion(tracker: Tracker, ledger: Ledger, challenger: str | None, comparison: dict[str, float]) -> None:
    """Record the champion of a ledger for MLflow's model registry.

    Args:
        challenger: Digest of the model that was compared with the champion and lost, or None.
        comparison: Of the two: the metric of each, difference, low, high; {} if none were compared.
    """
    champion = ledger.champion
    assert champion is not None and champion["number"] is not None and champion["champion"] is not None
    tracker.champion(
        ledger.recipe, str(champion["task"]), champion["number"], champion["champion"], challenger, comparison,
        series=ledger.stands["series"], created=champion["created"],
    )  # fmt: skip


def new_tracker(recipe: Recipe, home: Path, run: str, tags: dict[str, str] | None = None) -> Tracker | None:
    """Begin to record a run for the MLflow server and experiment that the recipe names, and start the process that
    uploads the record. Return the tracker, to which the run's events are then given; None, and nothing is begun, when
    `tracking.enabled` is false.

    home: the folder of local state (TRNFLOW_HOME); run: the id of the run; tags: further tags of the run in MLflow.
    """
    if not recipe.tracking.enabled:
        return None
    return Tracker(
        home,
        run,
        recipe.name,
        settings=recipe.to_json(),
        tags=_tags() | (tags or {}),
        experiment=recipe.tracking.experiment,
        uri=tracking_uri(home, recipe.tracking, recipe.folder("tracking.uri")),
        written=recipe.tracking.uri,
    )


def sources(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield (name of the setting, its value with secrets hidden) of each data source of a recipe."""
    for name, one in recipe.data.sources().items():
        yield f"data.mix.{name}.source" if name else "data.source", str(hide_secrets(one.source))


def _tags() -> dict[str, str]:
    state = checkout_state()
    if state is None:
        return {}
    return {"git.commit": str(state["commit"]), "git.dirty": str(state["dirty"]).lower()}
