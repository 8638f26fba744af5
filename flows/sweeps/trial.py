"""Run one trial of a sweep: an ordinary run of the recipe with the trial's settings, which ends after the stage
`train`."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trnflow.flows.finetune import FINETUNE
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.call import Call, Outcome
from trnflow.flows.runner.executor import Listener
from trnflow.flows.runner.run import Options, Result, execute, new_run_id, open_store
from trnflow.flows.runner.single_flight import WAITS
from trnflow.flows.sweeps.study import SweepStudy
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, Interrupted, MachineError, MissingDependency, StoreError, TrnflowError
from trnflow.tasks.store import Store

if TYPE_CHECKING:
    from optuna.trial import Trial

LAST = "train"
"""The stage whose metrics compare trials. Trials stop after it, so none looks at the test split."""
TESTED = "evaluate_model"
"""The stage that looks at the test split, in the winner's run alone."""
NOT_THE_SETTINGS = (StoreError, MachineError, MissingDependency)
"""Errors for which the settings of a trial are not to blame. They end the sweep, and the trial is repeated."""

Run = Callable[[Recipe, Options, str, tuple[Listener, ...], dict[str, str]], Result]
"""Runs a recipe's pipeline: (recipe, options, id of the run, listeners, tags of the run in MLflow) -> result."""
SWEEP = "trnflow.sweep"
"""The tag that nests a run in the sweep's own run in MLflow."""


class Pruned(Interrupted):
    """Raised in the run of a trial to end its training early, because its metric is worse than the median of earlier
    trials."""


@dataclass
class Watch(Listener):
    """Listener of a trial's run: reports the metric of each evaluation to the study. It raises an error to end the run
    when the study wants to end the trial early, or when the sweep is stopped.

    Attributes:
        study: The study that records the trial.
        trial: The trial that the run does.
        metric: The metric of the stage `train` by which trials are compared, such as eval_loss.
        stopping: Set by the sweep to end its trials, such as after Ctrl-C.
        say: Called with a line of text for each other run that the trial waits for.
        key: The key of the stage `train` (the hash of its settings, inputs and code), under which the store keeps the
            trial's checkpoints; None until training begins.
        pruned: Whether the study ended the trial early.
        lost: The error that ends the whole sweep: the study's database failed, or training does not report `metric`.
            None if there was none.
    """

    study: SweepStudy
    trial: Trial
    metric: str
    stopping: threading.Event
    say: Callable[[str], None] = lambda line: None
    key: str | None = None
    pruned: bool = False
    lost: TrnflowError | None = field(default=None)

    def stage_started(self, call: Call, key: str) -> None:
        self._heed()
        if call.name == LAST:
            self.key = key

    def waits(self, stage: str) -> None:
        self._heed()

    def event(self, stage: str, event: Meta) -> None:
        self._heed()
        if str(event.get("info", "")).startswith(WAITS):
            self.say(f"trial {self.trial.number}: {stage} {event['info']}")
        metrics = event.get("metrics")
        if stage != LAST or metrics is None:
            return
        self._refuse_unreported(metrics["values"])
        if self.metric not in metrics["values"] or metrics["step"] < 1:
            return
        value = float(metrics["values"][self.metric])
        try:
            self.pruned = math.isfinite(value) and self.study.report(self.trial, value, metrics["step"])
        except StoreError as error:
            self.lost = error
            raise
        if self.pruned:
            raise Pruned(f"the trial was ended at step {metrics['step']}: its {self.metric} is worse than the median")

    def stage_ended(self, outcome: Outcome) -> None:
        self._heed()

    def _refuse_unreported(self, values: Meta) -> None:
        """Raise ConfigError at an evaluation if training does not report the sweep's metric. The first evaluation comes
        before the first step. values: {metric: number} of an event."""
        if "eval_loss" not in values:
            return
        known = {"train_loss", *values, *(f"{name}_before" for name in values)}
        if self.metric not in known:
            self.lost = unreported(self.metric, known)
            raise self.lost

    def _heed(self) -> None:
        if self.stopping.is_set():
            raise Interrupted("the sweep was interrupted", "run the same command again to go on")


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
    """Run the pipeline up to training with a trial's settings, and record in the study how the trial ended: completed
    with its metric, pruned (ended early) or failed. The checkpoints of a pruned trial are removed, unless another run
    trains with the same key (of the stage `train`: the hash of its settings, inputs and code).

    Args:
        study: The study that the trial belongs to.
        trial: The trial, from `SweepStudy.next`.
        recipe: The recipe with the trial's settings.
        store: The store of the sweep.
        run: Runs the recipe's pipeline.
        offline: Whether to make no requests to a hub.
        stopping: When this event is set, the trial ends; the same sweep command repeats it later.
        say: Called with a line of text for each other run that the trial waits for.

    Returns:
        The result of the run. Its `error` is set if training was ended early or failed.

    Raises:
        TrnflowError: The trial was interrupted, or the store, the machine or a missing library made it fail. It stays
            unfinished in the study.
        ConfigError: Training does not report the metric `sweep.metric`.
    """
    metric = recipe.sweep.metric
    watch, identity = Watch(study, trial, metric, stopping, say), new_run_id()
    study.note_run(trial, identity)
    try:
        result = run(recipe, Options(until=LAST, offline=offline), identity, (watch,), {SWEEP: study.identity})
    except BaseException:  # such as Prefect's TerminationSignal when the flow run is cancelled
        _note_stopped(study, trial)
        raise
    error = watch.lost or result.error
    study.note_shared(trial, sum(_seconds_of(store, outcome) for outcome in result.outcomes))
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
    """Return, without raising it, the error for a sweep whose setting `sweep.metric` names a metric that training does
    not report. metric: that name; known: the names of the metrics that training reports."""
    return ConfigError(
        f"training reports no metric {metric}: it reports {', '.join(sorted(known)) or 'nothing'}",
        "name one of these: --metric NAME",
    )


def _note_stopped(study: SweepStudy, trial: Trial) -> None:
    with contextlib.suppress(StoreError):  # of the study's database: the first cause is the one to show
        study.note_stopped(trial)


def _record_value(study: SweepStudy, trial: Trial, metric: str, result: Result) -> None:
    metrics = next((outcome.metrics for outcome in result.outcomes if outcome.stage == LAST), {})
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
    """Remove the training state of a trial that was ended early, unless another run trains with the same key."""
    lease = store.waiter(key, run=run, attempt=run, ttl=ttl).take()
    if lease is not None:
        with lease:
            store.partial(key).prune(0)


def _seconds_of(store: Store, outcome: Outcome) -> float:
    """Return how many seconds it once took to make the artifact that a stage before training found in the store; 0 for
    a stage that ran."""
    if outcome.action != "hit" or outcome.key is None or outcome.stage == LAST:
        return 0.0
    record = store.record(outcome.stage, outcome.key) or {}
    return float(store.attempt(outcome.key, str(record.get("attempt", ""))).get("seconds") or 0.0)


def run_directly(
    recipe: Recipe, what: Options, run: str, listeners: tuple[Listener, ...], tags: dict[str, str]
) -> Result:
    """Run a recipe's pipeline in this process and return its result; record the run in MLflow unless the recipe turns
    tracking off. This is the `Run` of `trnflow sweep`.

    what: until which stage, and other options; run: the id of the new run; listeners: called with the run's events;
    tags: of the run in MLflow."""
    from trnflow.flows.services.mlflow_listener import Tracking

    store = open_store(recipe)
    with Tracking(recipe, store.home, run, tags) as tracking:
        return tracking.finish(execute(recipe, store, what, FINETUNE, run=run, listeners=(*listeners, tracking)))
