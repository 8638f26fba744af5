"""What a sweep needs of the run of a trial: to run it, and to watch its events."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from trnflow.flows.finetune import ROLES, finetune
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import context_of, open_store
from trnflow.flows.runner.mlflow_log import trackers
from trnflow.flows.runner.plan import Options, Step
from trnflow.flows.runner.run import Result
from trnflow.flows.runner.run import run as run_graph
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, Interrupted, MachineError, MissingDependency, StoreError, TrnflowError
from trnflow.tasks.events import Event, EventLog, Reader, RunState
from trnflow.tasks.events.event_types import Metrics
from trnflow.tasks.sources.resolver import Answers
from trnflow.tasks.store import Store

# trials stop after the stage whose metrics compare them: none looks at the test split
LAST = ROLES["training"]
TESTED = ROLES["evaluation"]
"""The stage that looks at the test split, in the winner's run alone."""
# These end the sweep: the trial's settings are not to blame, and it is repeated.
NOT_THE_SETTINGS = (StoreError, MachineError, MissingDependency)

Run = Callable[[Recipe, Options, str, tuple[Reader, ...], str], Result]
"""Runs a recipe's pipeline: (recipe, options, run's id, readers of its events, the sweep's id) -> result."""


class Reported(Protocol):
    """A study, of which a trial needs no more."""

    def report(self, trial: Any, value: float, step: int) -> bool:
        """Record a trial's metric at a step; return whether to prune it."""


class Pruned(Interrupted):
    """Raised in a trial's run when its metric is worse than the median of earlier trials."""


@dataclass
class Watch(Reader):
    """Reader of a trial's events: reports each evaluation to the study, and ends a pruned trial.

    Attributes:
        stopping: Set by the sweep to end its trials.
        say: Called with a line for each other run that the trial waits for.
        key: The key of train; None until training begins.
        lost: The error that ends the whole sweep.
    """

    critical = True

    study: Reported
    trial: Any
    metric: str
    stopping: threading.Event
    say: Callable[[str], None] = lambda line: None
    key: str | None = None
    pruned: bool = False
    lost: TrnflowError | None = None

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
        # step 0 is the model before training
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


def unreported(metric: str, known: Iterable[str]) -> ConfigError:
    """Return the error for a metric that training does not report. known: those that it reports."""
    return ConfigError(
        f"training reports no metric {metric}: it reports {', '.join(sorted(known)) or 'nothing'}",
        "name one of these: --metric NAME",
    )


def remove_partial(store: Store, key: str, run: str, ttl: float) -> None:
    """Remove a pruned trial's partial state."""
    # unless another run trains with the same key
    lease = store.waiter(key, run=run, attempt=run, ttl=ttl).acquire()
    if lease is not None:
        with lease:
            store.partial(key).prune(0)


def once_took(store: Store, step: Step) -> float | None:
    """Return the seconds of the attempt that made what the store has, else those that the plan expects; None if unknown."""
    record = store.record(step.name, step.key) if step.action == "hit" and step.key else None
    return store.attempt(record["key"], record["attempt"]).get("seconds") if record else step.seconds


def seconds_of(store: Store, step: Step) -> float:
    """Return how long it once took to make what a stage found in the store; 0 for one that ran."""
    return once_took(store, step) or 0.0 if step.action == "hit" and step.name != LAST else 0.0


def direct_runs(answers: Answers) -> Run:
    """Return the `Run` that runs pipelines in this process. answers: about their sources, which all of them share."""

    def run_directly(recipe: Recipe, what: Options, run: str, readers: tuple[Reader, ...], sweep: str) -> Result:
        store = open_store(recipe)
        context = context_of(recipe, store, offline=what.offline, answers=answers)
        log = EventLog(*readers, *trackers(recipe, store))
        context = context.for_run(log, run=run, kind="trial" if what.until else "run")
        context.parent = sweep
        return run_graph(finetune(recipe), context, what)

    return run_directly
