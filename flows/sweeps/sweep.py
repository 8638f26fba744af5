"""Run the trials of a sweep, then the winner.

Trials share stages through the store. The same command resumes a sweep: finished trials are kept, running ones repeated
from their partial state.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from trnflow.flows.finetune import rows_source
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import context_of, new_run_id, open_store
from trnflow.flows.runner.graph import source_of
from trnflow.flows.runner.mlflow_log import trackers
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import Result
from trnflow.flows.runner.run_log import begin_log
from trnflow.flows.runner.work_folders import make_store
from trnflow.flows.sweeps.files import SweepDocument, document, write_best
from trnflow.flows.sweeps.page import sweep_page
from trnflow.flows.sweeps.plan import Plan
from trnflow.flows.sweeps.pool import Leases, check_fit, on_slot
from trnflow.flows.sweeps.study import RUN, SHARED, SweepStudy, database_errors, open_study
from trnflow.flows.sweeps.timed_study import TimedStudy
from trnflow.flows.sweeps.trial import (
    LAST,
    NOT_THE_SETTINGS,
    TESTED,
    Run,
    Watch,
    remove_partial,
    seconds_of,
    unreported,
)
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, Interrupted, TrnflowError
from trnflow.tasks.events import EventLog, Reader
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.sources.model_source import model_source
from trnflow.tasks.sources.resolver import Answers
from trnflow.tasks.store import Store
from trnflow.tasks.system.redaction import hide_secrets, scrub
from trnflow.tasks.system.whole_file import write_whole

AnyStudy = SweepStudy | TimedStudy
# the sweep ends if so many trials failed and none ended well
HOPELESS = 3
PAGE_SECONDS = 60.0
"""The page is drawn again if it is older."""


@dataclass
class Sweep:
    """A sweep that runs.

    Attributes:
        run: Runs a trial's pipeline, or the winner's.
        say: Called with a line for each trial that ends and each run that is waited for.
        show: Called with the content of sweep.json after each trial.
        errors: Of failed and pruned trials, in the order of their ends.
        stopping: Set to end all trials.
        writing: Held while result files are written.
        drawn: When sweep.html was written, in monotonic seconds.
    """

    plan: Plan
    store: Store
    study: AnyStudy
    run: Run
    say: Callable[[str], None]
    offline: bool = False
    show: Callable[[SweepDocument], None] = lambda content: None
    errors: list[TrnflowError] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    writing: threading.Lock = field(default_factory=threading.Lock)
    drawn: float = field(default_factory=time.monotonic)

    def run_trials(self) -> None:
        """Run all trials that are left, `sweep.parallel` at a time, and write the results after each.

        Raises TrnflowError if the first three trials (or all) failed, or the sweep can't go on.
        """
        # not by `Study.optimize`: its threads seed the sampler at random, Ctrl-C waits for the trials that run, and a
        # killed trial is repeated only when its heartbeat has been silent for a while
        parallel = self.plan.recipe.sweep.parallel
        if parallel == 1:
            self._work(0)
            return
        with ThreadPoolExecutor(parallel, "sweep") as pool:
            workers = [pool.submit(self._work, slot) for slot in range(parallel)]
            try:
                for worker in wait(workers, return_when=FIRST_EXCEPTION).done:
                    worker.result()
            finally:
                self.stopping.set()

    def write(self) -> SweepDocument:
        """Write sweep.json and, if a trial completed, best.yaml; return the content of sweep.json."""
        folder, best = self.plan.folder(self.store.home), self.study.best()
        content = document(self.plan, self.study.trials(), best, self.study.winner)
        if best is not None:
            write_best(folder, self.plan, best)
        write_whole(folder / "sweep.json", f"{json.dumps(hide_secrets(content), indent=1)}\n")
        return content

    def write_page(self, content: SweepDocument) -> None:
        database = self.plan.database(self.store.home)
        with database_errors(database) if self.study.study else nullcontext():
            page = sweep_page(hide_secrets(content), self.study.study)
        write_whole(self.plan.folder(self.store.home) / "sweep.html", page)

    def _work(self, slot: int) -> None:
        while not self.stopping.is_set():
            self._refuse_hopeless()
            trial = self.study.next()
            if trial is None:
                return
            self._try(trial, slot)

    def _try(self, trial: Any, slot: int) -> None:
        try:
            recipe = on_slot(self.plan.with_values(trial.params, self.plan.trial_name), slot)
        except ConfigError as error:
            self.study.fail(trial, error.message)
            self.errors.append(error)
        else:
            self._train(trial, recipe)
        with self.writing:
            content = self.write()
            self.show(content)
            if time.monotonic() - self.drawn > PAGE_SECONDS:
                self.write_page(content)
                self.drawn = time.monotonic()
        self.say(self._line(trial.number))

    def _train(self, trial: Any, recipe: Recipe) -> None:
        """Train with a trial's settings, and record its end. Raises TrnflowError if its settings did not end it."""
        study, watch = self.study, Watch(self.study, trial, recipe.sweep.metric, self.stopping, self.say)
        run = new_run_id()
        study.note(trial, RUN, run)
        try:
            result = self.run(recipe, Options(until=LAST, offline=self.offline), run, (watch,), study.identity)
        except BaseException:  # such as Prefect's TerminationSignal when the flow run is cancelled
            study.note_stopped(trial)
            raise
        error = watch.lost or result.error
        study.note(trial, SHARED, round(sum(seconds_of(self.store, step) for step in result.steps), 3))
        if watch.pruned:
            if watch.key is not None:
                remove_partial(self.store, watch.key, run, recipe.store.lease_ttl_seconds)
            study.prune(trial)
        elif isinstance(error, (Interrupted, *NOT_THE_SETTINGS)):
            study.note_stopped(trial)
            raise error
        elif error is not None:
            study.fail(trial, error.message)
        else:
            self._record_value(trial, result)
        if watch.lost is not None:
            raise watch.lost
        if result.error is not None:
            self.errors.append(result.error)

    def _record_value(self, trial: Any, result: Result) -> None:
        metric = self.plan.recipe.sweep.metric
        metrics = next((step.metrics for step in result.steps if step.name == LAST), {})
        value = metrics.get(metric)
        if not isinstance(value, int | float):
            error = unreported(metric, metrics)
            self.study.fail(trial, error.message)
            raise error
        if math.isfinite(value):
            self.study.complete(trial, float(value))
        else:
            self.study.fail(trial, f"{metric} is {value}")

    def _line(self, number: int) -> str:
        trials = self.study.trials()
        trial, best = trials[number], self.study.best()
        ended = sum(some.state in ("completed", "pruned", "failed") for some in trials)
        ending = f"{self.plan.recipe.sweep.metric} {trial.value:.4g}" if trial.value is not None else trial.state
        known = f" (best {best.value:.4g}, trial {best.number})" if best and best.value is not None else ""
        why = f": {scrub(trial.error)}" if trial.error else ""
        return f"trial {number} ({ended} of {self.study.total}): {shown(trial.settings)}: {ending}{why}{known}"

    def _refuse_hopeless(self) -> None:
        """Raise the first trial's error if HOPELESS trials, or all, failed."""
        trials = self.study.trials()
        bad = [trial for trial in trials if trial.state == "failed"]
        good = any(trial.state in ("completed", "pruned") for trial in trials)
        if good or len(bad) < min(HOPELESS, self.study.total):
            return
        first = bad[0]
        fix = self.errors[0].fix if self.errors else "correct the recipe, or vary other settings"
        kind = type(self.errors[0]) if self.errors else TrnflowError
        raise kind(
            f"all {len(bad)} trials failed; the first (trial {first.number}, {shown(first.settings)}): {first.error}",
            fix,
        )


def sweep(
    plan: Plan,
    run: Run,
    say: Callable[[str], None],
    *,
    readers: tuple[Reader, ...] = (),
    offline: bool = False,
    wait: bool = False,
    show: Callable[[SweepDocument], None] = lambda content: None,
    answers: Answers | None = None,
) -> tuple[SweepDocument, Result | None]:
    """Run the trials that are left, then the winner; return (content of sweep.json, the winner's result or None).

    Args:
        run: Runs a recipe's pipeline: up to training for a trial.
        say: Called with a line for each trial that ends and each run that is waited for.
        readers: Of the events of the winner's run.
        wait: Wait for another holder of the study or devices, else ConfigError.
        show: Called with the content of sweep.json after each trial, and at the end.
        answers: About sources, which the trials share.

    Raises:
        TrnflowError: The first three trials failed, or the sweep was interrupted or can't go on.
    """
    check_fit(plan.recipe)
    store = open_store(plan.recipe)
    make_store(store)
    leases = Leases(plan.recipe, store, plan.name, say, wait)
    with leases.hold_study():
        study = (
            TimedStudy(plan, store, run, say, offline=offline)
            if plan.recipe.sweep.within
            else _opened(plan, store, offline, answers)
        )
        going = Sweep(plan, store, study, run, say, offline, show)
        again = study.queue_again()
        if again:
            say(f"repeats the trials that did not end: {', '.join(map(str, again))}")
        with leases.hold_devices() if study.has_trials_left else nullcontext(), _own_run(plan, store, study):
            going.run_trials()
            going._refuse_hopeless()
            result = _winner(going, readers)
            content = going.write()
            show(content)
            going.write_page(content)
            return content, result


def _opened(plan: Plan, store: Store, offline: bool, answers: Answers | None = None) -> SweepStudy:
    database, recipe, sources = plan.database(store.home), plan.recipe, {}
    resolver = context_of(recipe, store, offline=offline, answers=answers).resolver
    # of a recipe's name the content may have changed; the first trial says that a source can't be found
    for lookup in (rows_source(recipe), source_of(model_source, recipe.model)):
        with suppress(TrnflowError):
            found = lookup.find(store, resolver)
            sources[found.kind] = digest_of(found.identity)
    definition, of_store = plan.definition(), plan.store_id(store)
    return open_study(plan.name, recipe.sweep, plan.space, definition, database, of_store, sources)


@contextmanager
def _own_run(plan: Plan, store: Store, study: AnyStudy) -> Iterator[None]:
    """Write the event log of the sweep's own run, in which MLflow nests the trials; nothing if the sweep is resumed."""
    if not study.is_new:
        yield
        return
    recipe = plan.recipe.model_copy(update={"name": plan.trial_name})
    log = EventLog(*trackers(recipe, store))
    context = context_of(recipe, store).for_run(log, run=study.identity, kind="sweep")
    with begin_log(context, tags={"trnflow.study": plan.name}):
        yield


def _winner(going: Sweep, readers: tuple[Reader, ...] = ()) -> Result | None:
    """Run and record the winner; None if no trial completed, or the winner is known for these sections."""
    best, before = going.study.best(), going.study.winner
    if best is None:
        return None
    sections = going.plan.recipe.to_json()
    around = {name: sections[name] for name in ("export", "evaluate")}
    if before and (before["settings"], before.get("around")) == (best.settings, around):
        return None
    recipe = going.plan.with_values(best.settings, going.plan.recipe.name)
    result = going.run(recipe, Options(offline=going.offline), new_run_id(), readers, going.study.identity)
    if result.error is None:
        metrics = {name: value for step in result.steps for name, value in step.metrics.items()}
        test = next((step.metrics for step in result.steps if step.name == TESTED), {})
        going.study.set_winner(
            {
                "trial": best.number, "settings": best.settings, "run": result.run, "metrics": metrics, "test": test,
                "around": around,
            }
        )  # fmt: skip
    return result


def shown(values: Meta) -> str:
    """Return a trial's settings as `name=value` pairs."""
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
    )
