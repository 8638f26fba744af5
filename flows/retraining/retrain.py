"""Retrain a recipe: train on its present data if anything changed, compare the new model with the champion on frozen
rows, and make the new model the champion if the new model is surely better (the bootstrap interval of the difference
lies above `promote.margin`).

champion: the model that the recipe's users get, named by a file in the store; frozen rows: a copy of test rows, kept
so that all models of a recipe are compared on the same rows; to judge a model: to compare it with the champion on the
frozen rows, or to make it the first champion.

A lease (a file in the store that one process holds) lets only one process at a time retrain a recipe.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from trnflow.flows.champions.contenders import of_run
from trnflow.flows.champions.freeze import freeze
from trnflow.flows.champions.frozen_rows import finetune_without, newest_frozen
from trnflow.flows.champions.mirror import mirror
from trnflow.flows.champions.promote import Decision, Round, promote
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.retraining.change import Change, find_change
from trnflow.flows.retraining.checks import Checked, check_data
from trnflow.flows.retraining.ended import present_data, write_ended
from trnflow.flows.retraining.lease import hold_lease
from trnflow.flows.retraining.outcome import Retrained
from trnflow.flows.runner.context import RunContext, context_of
from trnflow.flows.runner.graph import Graph
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import Result
from trnflow.flows.runner.run_log import begin_log
from trnflow.flows.runner.work_folders import clean
from trnflow.tasks.errors import Interrupted, StoreError, TrnflowError, unexpected
from trnflow.tasks.events import EventLog
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import Holder, Lease, LeaseLost
from trnflow.tasks.store.ledger import read_ledger
from trnflow.tasks.system.redaction import scrub, scrubbed

Train = Callable[[RunContext, Graph], Result]
"""Runs a graph of a recipe and writes the run record; the command line and Prefect pass their own."""


def retrain(
    context: RunContext, log: EventLog, train: Train, *, wait: bool = False, change: Change | None = None
) -> Retrained:
    """Retrain a recipe if its data, code or settings changed since its newest judged model, and promote the new model
    if it is better than the champion (make it the champion, the model that the recipe's users get). A model is judged
    when a retrain compares it with the champion, or makes it the first one.

    The comparison uses the recipe's frozen rows, a fixed copy of test rows. If there are none, the present test rows
    are frozen before training. The data is checked first; a check may stop the retraining. If the data changed during
    training, the recipe is retrained once more. How the retraining ended is an entry of the recipe's ledger, unless it
    was interrupted or another process retrains the recipe.

    Args:
        context: Of the recipe to retrain. Its sources are asked once; the look after a round asks them again.
        log: Gets the events of each round.
        train: Runs the pipeline, with the same log.
        wait: Whether to wait while another process retrains this recipe; otherwise end at once as unchanged.
        change: What the caller has found; it holds unless the ledger has a new entry.

    Returns:
        How the retraining ended. A TrnflowError is returned in `error`.

    Raises:
        Exception: Any error that is not a TrnflowError, after it was recorded as a failure.
    """

    recipe, store = context.recipe, context.store

    def tell(holder: Holder) -> None:
        log.write("waits", stage="retrain", holder=f"{holder}, which retrains {recipe.name}")

    try:
        clean(store)
        with hold_lease(recipe, store, wait=wait, tell=tell) as lease:
            if isinstance(lease, str):
                why = f"another retrain of {recipe.name} is under way: {lease}"
                return _with_present(recipe, store, Retrained(recipe.name, None, False, why))
            return _retrain(_Work(context, log, train, lease), change)
    except Exception as error:
        failed = record_failure(recipe, store, error, offline=context.resolver.offline)
        if isinstance(error, TrnflowError):
            return failed
        raise  # an error of this program


def record_failure(recipe: Recipe, store: Store, error: Exception, *, offline: bool = False) -> Retrained:
    """Add to the recipe's ledger that a retraining failed, and return the outcome that `failure` makes of the error. An
    interruption is not added.

    offline: make no requests to a hub when the digest of the present data is looked up."""
    data = None
    with contextlib.suppress(TrnflowError):
        data = present_data(recipe, store, offline=offline)
    return on_record(store, failure(recipe, store, error), data)


def failure(recipe: Recipe, store: Store, error: Exception) -> Retrained:
    """Return the outcome of a retraining that failed: the error, with the present champion (the model that the recipe's
    users get) and frozen rows (the fixed test rows on which models are compared). Writes nothing. error: why it failed;
    one that is no TrnflowError is turned into one."""
    known = scrubbed(error if isinstance(error, TrnflowError) else unexpected(error))
    return _with_present(recipe, store, Retrained(recipe.name, None, False, known.message, error=known))


def unchanged(change: Change, store: Store) -> Retrained:
    """Return the outcome of a retraining that found nothing changed and trained nothing, and add it to the recipe's
    ledger unless the data is settled. change: what `find_change` found."""
    frozen = change.frozen.artifact.digest if change.frozen else None
    name, champion, challenger = change.recipe.name, change.champion, change.challenger
    done = Retrained(name, None, False, change.why, champion=champion, challenger=challenger, frozen=frozen)
    return on_record(store, done, change.data)


def on_record(store: Store, done: Retrained, data: str | None) -> Retrained:
    """Add how a retraining ended to the recipe's ledger, unless its decision is there already, and return `done`. If
    that fails, return `done` with a note for the user instead of raising an error.

    done: how the retraining ended; data: the digest of the data that the retraining was about, None if it is not
    known."""
    try:
        write_ended(store, done, data)
    except StoreError as error:
        return _noted(done, f"how this retrain ended is not on record: {error.message}")
    return done


@dataclass(frozen=True)
class _Work:
    """What a retraining works with, under its lease. The fields are as for `retrain`."""

    context: RunContext
    log: EventLog
    train: Train
    lease: Lease

    @property
    def recipe(self) -> Recipe:
        return self.context.recipe

    @property
    def store(self) -> Store:
        return self.context.store

    @property
    def offline(self) -> bool:
        return self.context.resolver.offline


def _retrain(work: _Work, change: Change | None) -> Retrained:
    """Make a round if anything changed, and one more if the data changed meanwhile."""
    if change is None or change.ledger != read_ledger(work.store, work.recipe.name).number:
        change = find_change(work.context)
    if not change.is_changed:
        return unchanged(change, work.store)
    done = retrain_once(work, change)
    if not _has_changed(work, done, change.data):
        return done
    try:
        # asks the sources again
        later = find_change(context_of(work.recipe, work.store, offline=work.offline))
    except TrnflowError as error:
        return _noted(done, f"the data changed meanwhile, and can't be looked at: {scrubbed(error).message}")
    if not later.is_changed:  # such as a file that this round had read already
        again = unchanged(later, work.store)
        return replace(done, notes=(*done.notes, *again.notes))
    second = retrain_once(work, later)
    if not second.changed:
        return _noted(done, second.why)
    second = _noted(second, f"the data changed meanwhile: a first round ended as {done.outcome} ({done.why})")
    if _has_changed(work, second, later.data):
        second = _noted(second, "the data changed once more: the next retrain looks at it")
    return replace(second, earlier=done if done.outcome in ("promoted", "kept") else None)


def _has_changed(work: _Work, done: Retrained, data: str) -> bool:
    """Look at the source again and say whether it differs from the data that a round was about. A source that can't be
    reached now counts as unchanged; so does that of a round that was interrupted or lost its lease."""
    if not done.changed or isinstance(done.error, Interrupted):
        return False
    try:
        return present_data(work.recipe, work.store, offline=work.offline) != data
    except TrnflowError:
        return False


def _noted(done: Retrained, note: str) -> Retrained:
    return replace(done, notes=(*done.notes, scrub(note)))


def retrain_once(work: _Work, change: Change) -> Retrained:
    """Check the data, train, judge, promote or keep, and put on record how this round ended. Its field `changed` is False if
    another process took the lease; then nothing is on record."""
    context = work.context.for_run(work.log, kind="retrain")
    with begin_log(context, Options(offline=work.offline), why=change.why):
        done = train_and_judge(work, change)
        if done.changed:
            done = on_record(work.store, done, change.data)
            work.log.write("decided", entry=done.to_json())
        work.log.end(done.error, list(done.notes))
    return done


def train_and_judge(work: _Work, change: Change) -> Retrained:
    """Return how a round ended. A judgement is in the ledger then, any other outcome is not."""
    recipe, store, lease = work.recipe, work.store, work.lease
    begun = Retrained(recipe.name, None, True, change.why, champion=change.champion, margin=recipe.promote.margin)
    if change.frozen is not None:
        begun = replace(begun, frozen=change.frozen.artifact.digest)
    try:
        checked = check_data(change, work.log)
        begun = _with_checks(begun, checked)
        if begun.stopped:
            return begun
        training, plan = change.context, change.context.plan
        frozen = change.frozen or freeze(training, work.log)
        begun = replace(begun, frozen=frozen.artifact.digest)
        if plan is None or change.frozen is None:  # frozen rows that are new leave the training rows
            training = training.with_recipe(change.recipe)
        graph = training.plan.graph if training.plan else finetune_without(change.recipe, frozen)
        result = work.train(training, graph)
        begun = replace(begun, run=result.run, notes=(*begun.notes, *result.notes))
        if result.error is not None:
            return replace(begun, error=result.error, why=result.error.message)
        lease.check()
        decision = promote(
            training, of_run(store, result.run, recipe.name), work.log, frozen=frozen,
            training=Round(result.run, change.data, list(begun.checks), lease.check),
        )  # fmt: skip
        done = _judged(begun, decision)
    except LeaseLost as error:
        return replace(begun, changed=False, why=f"another retrain of {recipe.name} took over: {error}")
    except TrnflowError as error:
        return replace(begun, error=scrubbed(error), why=scrubbed(error).message)
    note = mirror(recipe, store, decision)
    return replace(done, notes=(*done.notes, note)) if note else done


def _with_checks(begun: Retrained, checked: tuple[Checked, ...]) -> Retrained:
    """Return the outcome `begun` with what the data checks found: as its reason if a check stops the retraining, else
    as its notes."""
    stopping = [one.sentence for one in checked if one.result == "stopped"]
    notes = tuple(one.sentence for one in checked if one.result in ("warned", "not applied"))
    done = replace(begun, checks=tuple(one.to_json() for one in checked), notes=(*begun.notes, *notes))
    return replace(done, stopped=True, why="; ".join(stopping)) if stopping else done


def _with_present(recipe: Recipe, store: Store, done: Retrained) -> Retrained:
    """Return the outcome `done` of a retraining that judged no model, with the digests of the present champion and
    frozen rows filled in, if the store can be read."""
    try:
        ledger = read_ledger(store, recipe.name)
        champion, frozen = ledger.champion, newest_frozen(recipe, store, ledger)
    except TrnflowError:
        return done
    return replace(
        done, champion=champion["champion"] if champion else None, frozen=frozen.artifact.digest if frozen else None
    )


def _judged(begun: Retrained, decision: Decision) -> Retrained:
    return replace(
        begun, promoted=decision.promoted, champion=decision.champion, challenger=decision.challenger,
        frozen=decision.frozen.artifact.digest, comparison=decision.comparison, why=decision.why, entry=decision.entry,
    )  # fmt: skip
