"""Run one trial of a sweep."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trnflow.flows.finetune import ROLES, finetune
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import context_of, new_run_id, open_store
from trnflow.flows.runner.mlflow_log import mlflow_delivery
from trnflow.flows.runner.plan import Options, Step
from trnflow.flows.runner.run import Result
from trnflow.flows.runner.run import run as run_graph
from trnflow.flows.sweeps.study import SweepStudy
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, Interrupted, MachineError, MissingDependency, StoreError, TrnflowError
from trnflow.tasks.events import Event, EventLog, Reader, RunState
from trnflow.tasks.events.event_types import Metrics
from trnflow.tasks.sources.resolver import Answers
from trnflow.tasks.store import Store

if TYPE_CHECKING:
    from optuna.trial import Trial

# trials stop after the stage whose metrics compare them: none looks at the test split
LAST = ROLES["training"]
TESTED = ROLES["evaluation"]
"""The stage that looks at the test split, in the winner's run alone."""
# These end the sweep: the trial's settings are not to blame, and it is repeated.
NOT_THE_SETTINGS = (StoreError, MachineError, MissingDependency)

Run = Callable[[Recipe, Options, str, tuple[Reader, ...], str], Result]
"""Runs a recipe's pipeline: (recipe, options, run's id, readers of its events, id of the sweep's own run) -> result."""


class Pruned(Interrupted):
    """Raised in a trial's run when its metric is worse than the median of earlier trials."""


@dataclass
class Watch(Reader):
    """Reader of a trial's events: reports each evaluation to the study, and ends a pruned trial.

    Attributes:
        stopping: Set by the sweep to end its trials.
        say: Called with a line for each other run that the trial waits for.
        key: The key of train; None until training begins.
        pruned: Whether the study ended the trial.
        lost: The error that ends the whole sweep.
    """

    critical = True

    study: SweepStudy
    trial: Trial
    metric: str
    stopping: threading.Event
    say: Callable[[str], None] = lambda line: None
    key: str | None = None
    pruned: bool = False
    lost: TrnflowError | None = field(default=None)

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] in ("run_begun", "stage_failed", "run_ended"):  # an error now would hide the first one
            return
        self.heed()
        if event["event"] == "stage_begun" and event["stage"] == LAST:
            self.key = event["key"]
        elif event["event"] == "waits":
            self.say(f"trial {self.trial.number}: {event['stage']} waits for {event['holder']}")
        elif event["event"] == "metrics" and event["stage"] == LAST:
            self._report(event)

    def _report(self, event: Metrics) -> None:
        """Tell the study the metric, and end the trial if the study prunes it."""
        values, step = event["values"], event["step"]
        self._refuse_unreported(values)
        if self.metric not in values or step < 1:
            return
        value = float(values[self.metric])
        try:
            self.pruned = math.isfinite(value) and self.study.report(self.trial, value, step)
        except StoreError as error:
            self.lost = error
            raise
        if self.pruned:
            raise Pruned(f"the trial was ended at step {step}: its {self.metric} is worse than the median")

    def heed(self) -> None:
        if self.stopping.is_set():
            raise Interrupted("the sweep was interrupted", "run the same command again to go on")

    def _refuse_unreported(self, values: Meta) -> None:
        """Raise ConfigError if an evaluation has not the sweep's metric."""
        if "eval_loss" not in values:
            return
        known = {"train_loss", *values, *(f"{name}_before" for name in values)}
        if self.metric not in known:
            self.lost = unreported(self.metric, known)
            raise self.lost


def run_trial(
    study: SweepStudy,
    trial: Trial,
    recipe: Recipe,
    store: Store,
    run: Run,
    *,
    offline: bool,
    stopping: threading.Event,
    say: Callable[[str], None],
) -> Result:
    """Run the pipeline up to training with a trial's settings, and record its end in the study; return the run's
    result.

    Args:
        stopping: When set, the trial ends; the same sweep command repeats it.
        say: Called with a line for each other run that the trial waits for.

    Raises:
        TrnflowError: The trial was interrupted, or store, machine or a missing library made it fail.
        ConfigError: Training does not report `sweep.metric`.
    """
    metric = recipe.sweep.metric
    watch, identity = Watch(study, trial, metric, stopping, say), new_run_id()
    study.note_run(trial, identity)
    try:
        result = run(recipe, Options(until=LAST, offline=offline), identity, (watch,), study.identity)
    except BaseException:  # such as Prefect's TerminationSignal when the flow run is cancelled
        _note_stopped(study, trial)
        raise
    error = watch.lost or result.error
    study.note_shared(trial, sum(_seconds_of(store, step) for step in result.steps))
    if watch.pruned:
        if watch.key is not None:
            _remove_partial(store, watch.key, identity, recipe.store.lease_ttl_seconds)
        study.prune(trial)
    elif isinstance(error, (Interrupted, *NOT_THE_SETTINGS)):
        _note_stopped(study, trial)
        raise error
    elif watch.lost is not None:
        study.fail(trial, watch.lost.message)
        raise watch.lost
    elif error is not None:
        study.fail(trial, error.message)
    else:
        _record_value(study, trial, metric, result)
    return result


def unreported(metric: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a metric that training does not report. known: those that it reports."""
    return ConfigError(
        f"training reports no metric {metric}: it reports {', '.join(sorted(known)) or 'nothing'}",
        "name one of these: --metric NAME",
    )


def _note_stopped(study: SweepStudy, trial: Trial) -> None:
    with contextlib.suppress(StoreError):  # of the study's database: the first cause is the one to show
        study.note_stopped(trial)


def _record_value(study: SweepStudy, trial: Trial, metric: str, result: Result) -> None:
    metrics = next((step.metrics for step in result.steps if step.name == LAST), {})
    value = metrics.get(metric)
    if not isinstance(value, int | float):
        error = unreported(metric, metrics)
        study.fail(trial, error.message)
        raise error
    if math.isfinite(value):
        study.complete(trial, float(value))
    else:
        study.fail(trial, f"{metric} is {value}")


def _remove_partial(store: Store, key: str, run: str, ttl: float) -> None:
    """Remove a pruned trial's partial state."""
    # unless another run trains with the same key
    lease = store.waiter(key, run=run, attempt=run, ttl=ttl).acquire()
    if lease is not None:
        with lease:
            store.partial(key).prune(0)


def _seconds_of(store: Store, step: Step) -> float:
    """Return how long it once took to make what a stage found in the store; 0 for one that ran."""
    if step.action != "hit" or step.key is None or step.name == LAST:
        return 0.0
    record = store.record(step.name, step.key) or {}
    return float(store.attempt(step.key, str(record.get("attempt", ""))).get("seconds") or 0.0)


def direct_runs() -> Run:
    """Return the `Run` of `trnflow sweep`: runs pipelines in this process. All of them, the winner's too, have the answers
    that the first one got about its sources."""
    answers = Answers()

    def run_directly(recipe: Recipe, what: Options, run: str, readers: tuple[Reader, ...], sweep: str) -> Result:
        store = open_store(recipe)
        context = context_of(recipe, store, offline=what.offline, answers=answers)
        context = context.for_run(EventLog(*readers, *mlflow_delivery(recipe, store)), run=run)
        context.parent = sweep
        context.kind = "trial" if what.until else "run"
        return run_graph(finetune(recipe), context, what)

    return run_directly
