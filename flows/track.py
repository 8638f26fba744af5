"""A run's listener that tells MLflow: settings, curves, figures, plots, digests and where the data came from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from flows.call import Call, Outcome
from flows.pages import tracking_uri
from flows.run import Result, checkout_state, open_store
from flows.settings import Recipe
from flows.stage import Listener
from tasks.artifact import Meta
from tasks.config import keyed_params
from tasks.errors import Interrupted
from tasks.tracking import Tracker
from tasks.tracking.redact import redact

PLOTS = (".png", ".json")
PLOTTED = "evaluate_model"


class Tracking(Listener):
    """As a context around a run: left by an exception, MLflow shows the run as failed (or killed)."""

    def __init__(self, recipe: Recipe, home: Path, run: str) -> None:
        self.run = run
        self._recipe = recipe
        self._store = open_store(recipe)
        self._tracker: Tracker | None = None
        if recipe.tracking.enabled:
            self._tracker = Tracker(
                home,
                run,
                recipe.name,
                settings=recipe.to_json(),
                tags=_tags(),
                experiment=recipe.tracking.experiment,
                uri=tracking_uri(home, recipe.tracking),
            )

    def stage_started(self, call: Call, key: str) -> None:
        if self._tracker:
            self._tracker.stage_started(call.name, key, keyed_params(call.config))

    def event(self, stage: str, event: Meta) -> None:
        if self._tracker and "metrics" in event:
            said = event["metrics"]
            self._tracker.metrics(stage, said["step"], said["values"], said["time"])

    def stage_ended(self, outcome: Outcome) -> None:
        if not self._tracker or outcome.artifact is None:
            return
        if outcome.stage == "load_data":
            for setting, source in sources(self._recipe):
                note = f"{setting}={source}"
                self._tracker.dataset(source, outcome.artifact.digest, note=note, context="training")
        lengths = outcome.artifact.meta.get("row_lengths", {})
        with tempfile.TemporaryDirectory() as folder:
            plots: tuple[Path, ...] = ()
            if outcome.stage == PLOTTED:
                self._store.copy_out(outcome.artifact, Path(folder))
                plots = tuple(path for path in sorted(Path(folder).iterdir()) if path.suffix in PLOTS)
            self._tracker.stage_ended(
                outcome.stage,
                action=outcome.action,
                key=outcome.key,
                artifact=outcome.artifact.digest,
                seconds=outcome.seconds,
                metrics=outcome.metrics,
                figures=outcome.figures,
                plots=plots,
                lengths={split: counted["rows"] for split, counted in lengths.items()},
            )

    def finish(self, result: Result) -> Result:
        """End the run in MLflow; what MLflow did not take becomes a note of the result, never its failure."""
        if self._tracker and self._tracker.open:
            stopped = isinstance(result.error, Interrupted)
            status = "KILLED" if stopped else "FAILED" if result.error else "FINISHED"
            warning = self._tracker.finish(status, wait_seconds=2.0 if stopped else 20.0)
            if warning:
                result.notes.append(warning)
        return result

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._tracker:
            self._tracker.__exit__(kind, error, at)


def sources(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """(setting, what it says) of every source of the data."""
    for name, one in recipe.data.sources().items():
        yield f"data.mix.{name}.source" if name else "data.source", str(redact(one.source))


def _tags() -> dict[str, str]:
    state = checkout_state()
    if state is None:
        return {}
    return {"git.commit": str(state["commit"]), "git.dirty": str(state["dirty"]).lower()}
