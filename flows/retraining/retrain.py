"""Retrain a recipe: train if anything changed, judge the new model, and promote it if it is surely better.

One process at a time retrains a recipe, under a lease.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from trnflow.flows.champions.contenders import of_run
from trnflow.flows.champions.frozen_rows import finetune_without, freeze, newest_frozen
from trnflow.flows.champions.mirror import mirror
from trnflow.flows.champions.promote import Round, of_first, promote
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.retraining.change import RetrainReason, find_change
from trnflow.flows.retraining.checks import check_data
from trnflow.flows.retraining.ended import present_data, write_ended
from trnflow.flows.retraining.firings import note_firing
from trnflow.flows.retraining.lease import hold_lease
from trnflow.flows.retraining.outcome import Retrained
from trnflow.flows.runner.context import RunContext, context_of
from trnflow.flows.runner.graph import Graph
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
"""Runs a graph of a recipe and writes the run record."""


def retrain(
    context: RunContext, log: EventLog, train: Train, *, wait: bool = False, change: RetrainReason | None = None
) -> Retrained:
    """Retrain a recipe if its data, code or settings changed since its newest judged model, and return how it ended.

    If the data changed during training, a second round follows. The ledger gets how each ended, unless interrupted.

    Args:
        context: Its sources are asked once; the look after a round asks again.
        log: Gets the events of each round.
        train: Runs the pipeline, with the same log.
        wait: Wait while another process retrains this recipe; else end as unchanged.
        change: What the caller has found; it holds unless the ledger has a new entry.

    Raises:
        Exception: Any but a TrnflowError, which is in the result's `error`; it was recorded as a failure.
    """

    recipe, store = context.recipe, context.store

    def tell(holder: Holder) -> None:
        log.write("waits", stage="retrain", holder=f"{holder}, which retrains {recipe.name}")

    try:
        clean(store)
        with hold_lease(recipe, store, wait=wait, tell=tell) as lease:
            if isinstance(lease, str):
                why = f"another retrain of {recipe.name} is under way: {lease}"
                note_firing(store.home, recipe.name, "unchanged", why, root=store.root)
                return _with_present(recipe, store, Retrained(recipe.name, None, False, why))
            return _retrain(_Work(context, log, train, lease), change)
    except Exception as error:
        failed = record_failure(recipe, store, error, offline=context.offline)
        if isinstance(error, TrnflowError):
            return failed
        raise  # an error of this program


def record_failure(recipe: Recipe, store: Store, error: Exception, *, offline: bool = False) -> Retrained:
    """Add to the ledger that a retrain failed, unless it was interrupted; return its outcome."""
    data = None
    with contextlib.suppress(TrnflowError):
        data = present_data(recipe, store, offline=offline)
    return on_record(store, failure(recipe, store, error), data)


def failure(recipe: Recipe, store: Store, error: Exception) -> Retrained:
    """Return the outcome of a retrain that failed, with the present champion and frozen rows. Writes nothing."""
    known = scrubbed(unexpected(error))
    return _with_present(recipe, store, Retrained(recipe.name, None, False, known.message, error=known))


def unchanged(change: RetrainReason, store: Store) -> Retrained:
    """Return the outcome of a retrain that found nothing changed; the ledger gets it unless the data is settled."""
    frozen = change.frozen.artifact.digest if change.frozen else None
    name, champion, challenger = change.recipe.name, change.champion, change.challenger
    ended = Retrained(name, None, False, change.why, champion=champion, challenger=challenger, frozen=frozen)
    return on_record(store, ended, change.data)


def on_record(store: Store, ended: Retrained, data: str | None, log: EventLog | None = None) -> Retrained:
    """Add how a retrain ended to the ledger, and return it, with a note if that fails. data: a digest, if known; log: gets
    the entry."""
    try:
        entry = write_ended(store, ended, data)
        if log is not None and entry is not None:
            log.write("decided", entry=dict(entry))
        if entry is None and ended.entry is None:
            outcome = "interrupted" if isinstance(ended.error, Interrupted) else ended.outcome
            note_firing(store.home, ended.recipe, outcome, ended.why, run=ended.run, root=store.root)
    except StoreError as error:
        return _noted(ended, f"how this retrain ended is not on record: {error.message}")
    return ended


class _Work(NamedTuple):
    """What a retrain works with, under its lease: see `retrain`."""

    context: RunContext
    log: EventLog
    train: Train
    lease: Lease


def _retrain(work: _Work, change: RetrainReason | None) -> Retrained:
    """Make a round if anything changed, and one more if the data changed meanwhile."""
    recipe, store, offline = work.context.recipe, work.context.store, work.context.offline
    if change is None or change.ledger != read_ledger(store, recipe.name).number:
        change = find_change(work.context)
    if not change.is_changed:
        return unchanged(change, store)
    first = retrain_once(work, change)
    if not _has_changed(work.context, first, change.data):
        return first
    try:
        # asks the sources again
        later = find_change(context_of(recipe, store, offline=offline))
    except TrnflowError as error:
        return _noted(first, f"the data changed meanwhile, and can't be looked at: {scrubbed(error).message}")
    if not later.is_changed:  # such as a file that this round had read already
        return replace(first, notes=(*first.notes, *unchanged(later, store).notes))
    second = retrain_once(work, later)
    if not second.changed:
        return _noted(first, second.why)
    second = _noted(second, f"the data changed meanwhile: a first round ended as {first.outcome} ({first.why})")
    if _has_changed(work.context, second, later.data):
        second = _noted(second, "the data changed once more: the next retrain looks at it")
    return replace(second, earlier=first if first.outcome in ("promoted", "kept") else None)


def _has_changed(context: RunContext, ended: Retrained, data: str) -> bool:
    """Return whether the source differs now from a round's data."""
    # a source that can't be reached counts as unchanged; so does that of an interrupted round
    if not ended.changed or isinstance(ended.error, Interrupted):
        return False
    try:
        return present_data(context.recipe, context.store, offline=context.offline) != data
    except TrnflowError:
        return False


def _noted(ended: Retrained, note: str) -> Retrained:
    return replace(ended, notes=(*ended.notes, scrub(note)))


def retrain_once(work: _Work, change: RetrainReason) -> Retrained:
    """Check the data, train, judge, and put on record how this round ended."""
    context = work.context.for_run(work.log, kind="retrain")
    with begin_log(context, why=change.why):
        ended = train_and_judge(work, change)
        if ended.changed:
            ended = on_record(context.store, ended, change.data, work.log)
        notes = work.log.end(ended.error, list(ended.notes))
    return replace(ended, notes=(*ended.notes, *notes))


def train_and_judge(work: _Work, change: RetrainReason) -> Retrained:
    """Return how a round ended. A judgement is in the ledger then, any other outcome is not."""
    recipe, store, lease = work.context.recipe, work.context.store, work.lease
    begun = Retrained(recipe.name, None, True, change.why, champion=change.champion, margin=recipe.promote.margin)
    if change.frozen is not None:
        begun = replace(begun, frozen=change.frozen.artifact.digest)
    try:
        checked = check_data(change, work.log)
        said = tuple(check.sentence for check in checked if check.result in ("warned", "not applied"))
        begun = replace(begun, checks=tuple(check.to_json() for check in checked), notes=(*begun.notes, *said))
        if stopping := [check.sentence for check in checked if check.result == "stopped"]:
            return replace(begun, stopped=True, why="; ".join(stopping))
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
        ended = replace(
            begun, promoted=decision.promoted, champion=decision.champion, challenger=decision.challenger,
            comparison=decision.comparison, why=decision.why, entry=decision.entry,
        )  # fmt: skip
    except LeaseLost as error:
        return replace(begun, changed=False, why=f"another retrain of {recipe.name} took over: {error}")
    except TrnflowError as error:
        return replace(begun, error=scrubbed(error), why=scrubbed(error).message)
    notes = filter(None, [of_first(recipe, store, decision), mirror(recipe, store, decision)])
    return replace(ended, notes=(*ended.notes, *notes))


def _with_present(recipe: Recipe, store: Store, ended: Retrained) -> Retrained:
    """Return `ended` with the present champion and frozen rows, if the store can be read."""
    try:
        ledger = read_ledger(store, recipe.name)
        champion, frozen = ledger.champion, newest_frozen(recipe, store, ledger)
    except TrnflowError:
        return ended
    return replace(
        ended, champion=champion["champion"] if champion else None, frozen=frozen.artifact.digest if frozen else None
    )
