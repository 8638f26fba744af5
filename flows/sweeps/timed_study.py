"""The study of a sweep with `sweep.within`: the trials of a ladder, while the time lasts. It needs neither Optuna nor a database.

The same command tries the same settings: those that were tried before are found in the store.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trnflow.flows.finetune import ROLES, finetune
from trnflow.flows.recipes.yaml_tree import OVERRIDE
from trnflow.flows.runner.context import new_run_id, plan_of
from trnflow.flows.runner.expected_time import spoken
from trnflow.flows.runner.plan import Options
from trnflow.flows.sweeps.ladder import ladder
from trnflow.flows.sweeps.plan import Plan
from trnflow.flows.sweeps.study import ERROR, RUN, SHARED, Tried, Winner, best_of
from trnflow.flows.sweeps.trial import LAST, Run, once_took
from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store import Store
from trnflow.tasks.training.automatic import SETTINGS
from trnflow.tasks.training.config import TrainConfig

REST = 0.5
"""What the winner's stages after training are expected to take, in trainings, if one of them never ran."""


@dataclass
class TimedTrial:
    """A trial of a ladder. begun: in monotonic seconds; once: the seconds of its training that the store has, or None."""

    number: int
    params: Meta
    begun: float
    updates: float
    once: float | None
    state: str = "running"
    value: float | None = None
    attributes: Meta = field(default_factory=dict)


class TimedStudy:
    """The study of one sweep, used by one thread. `SweepStudy` says what its methods do.

    say: called with a line when no further trial begins.
    """

    is_new, study, has_trials_left = True, None, True
    winner: Winner | None = None

    def __init__(self, plan: Plan, store: Store, run: Run, say: Callable[[str], None], *, offline: bool) -> None:
        self._plan, self._store, self._run, self._say, self._offline = plan, store, run, say, offline
        self._begun, self.identity = time.monotonic(), new_run_id()
        self._ladder: list[Meta] = []
        self._trials: list[TimedTrial] = []
        self._seconds, self._updates = [0.0], 0.0
        self._rest: float | None = None
        self._rows = 0

    @property
    def total(self) -> int:
        return len(self._ladder) or 1

    def trials(self) -> list[Tried]:
        return [
            Tried(
                trial.number, trial.params, trial.value, trial.state, trial.attributes.get(RUN),
                trial.attributes.get(ERROR), trial.attributes.get(SHARED, 0.0),
            )
            for trial in self._trials
        ]  # fmt: skip

    def best(self) -> Tried | None:
        return best_of(self.trials(), self._plan.recipe.sweep)

    def queue_again(self) -> list[int]:
        return []

    def next(self) -> TimedTrial | None:
        """Begin the next trial of the ladder; None after the last, and if it would not end in time."""
        if not self._ladder:
            self._prepare()
        number = len(self._trials)
        if number == len(self._ladder):
            self._say_end(f"tried all {number} settings")
            return None
        recipe = self._plan.with_values(self._ladder[number], self._plan.trial_name)
        step = plan_of(finetune(recipe), recipe, self._store).steps[LAST]
        assert isinstance(step.config, TrainConfig)
        updates = float(step.config.max_steps or step.config.epochs)
        once = once_took(self._store, step) if step.action == "hit" else None
        # a training that the store has takes no time
        expected = sum(self._seconds) / self._updates * updates if once is None and self._updates else 0.0
        if expected and not self._has_time_for(expected):
            self._say_end(f"tried {number} of {self.total} settings", f"; the next takes about {spoken(expected)}")
            return None
        self._trials.append(TimedTrial(number, self._ladder[number], time.monotonic(), updates, once))
        return self._trials[-1]

    def note(self, trial: TimedTrial, attribute: str, value: Json) -> None:
        trial.attributes[attribute] = value

    def note_stopped(self, trial: TimedTrial) -> None: ...

    def report(self, trial: TimedTrial, value: float, step: int) -> bool:
        """Return False: none is pruned, since a ladder has few trials, and longer ones are worse at first."""
        return False

    def prune(self, trial: TimedTrial) -> None: ...

    def complete(self, trial: TimedTrial, value: float) -> None:
        trial.state, trial.value = "completed", value
        self._seconds.append(time.monotonic() - trial.begun if trial.once is None else trial.once)
        self._updates += trial.updates

    def fail(self, trial: TimedTrial, why: str) -> None:
        trial.state, trial.attributes[ERROR] = "failed", why

    def set_winner(self, document: Winner) -> None:
        self.winner = document

    def _has_time_for(self, seconds: float) -> bool:
        """Return whether a trial of so many seconds and the winner's stages after training would end in time."""
        rest = max(self._seconds) * REST if self._rest is None else self._rest
        return time.monotonic() - self._begun + seconds + rest <= self._plan.recipe.sweep.within_seconds

    def _prepare(self) -> None:
        """Make what all trials share, and the ladder. Raises ConfigError without validation rows."""
        # before the first trial, whose time then is that of a training
        shared = Options(until=ROLES["graphs"], offline=self._offline)
        recipe = self._plan.with_values({}, self._plan.trial_name)
        if (error := self._run(recipe, shared, new_run_id(), (), self.identity).error) is not None:
            raise error
        found = plan_of(finetune(recipe), recipe, self._store)
        self._rows = sum(found.artifact(ROLES["chunks"]).meta["rows"].get("validation", {}).values())
        if not self._rows:
            raise ConfigError(
                "sweep --within compares trials on the validation split, which has no rows",
                "give the data a validation split (data.split.validation=0.1)",
            )
        steps = list(found.steps.values())
        training = found.steps[LAST]
        for_rest = [once_took(self._store, step) for step in steps[steps.index(training) + 1 :]]
        known = [seconds for seconds in for_rest if seconds is not None]
        self._rest = sum(known) if len(known) == len(for_rest) else None
        origins = self._plan.read.with_overrides(self._plan.overrides).origins
        fixed = {".".join(path) for path, origin in origins.items() if origin.startswith(OVERRIDE)}
        chosen = {f"train.{name}": getattr(training.config, name) for name in SETTINGS}
        self._ladder = ladder(self._plan.recipe.changed(chosen), fixed)

    def _say_end(self, tried: str, why: str = "") -> None:
        self._say(f"{tried} in {spoken(time.monotonic() - self._begun)}{why}")
        best, metric = self.best(), self._plan.recipe.sweep.metric
        if best is None or best.value is None:
            return
        two = 2 * math.sqrt(best.value * (1 - best.value) / self._rows) if metric == "eval_accuracy" else None
        what = "rows" if self._plan.recipe.learns.per_row else "chunks"
        number = "" if two is None else f" ({two:.2g})"
        self._say(
            f"validation has {self._rows} {what}: a difference in {metric} below two standard errors{number} tells little"
        )
