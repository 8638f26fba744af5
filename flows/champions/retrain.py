"""Retrain a recipe: train on its present data if anything changed, compare the model with the champion, promote or keep.

A recipe is unchanged if data, code and settings that make the model equal those of its newest judgement
(`judgement.py`); the model that training starts from does not count, because a promotion changes it. Of several
retrainings of a recipe at once, one works under a lease of the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from flows.champions.contenders import Contender, model_in, of_run
from flows.champions.freeze import Frozen, freeze, newest_frozen
from flows.champions.judgement import newest_judged, write_judged
from flows.champions.mirror import mirror
from flows.champions.promote import PROMOTED, ROLLED_BACK, Decision, champions_of, promote
from flows.finetune import FINETUNE, finetune
from flows.recipes.recipe import Recipe
from flows.runner.executor import Listener
from flows.runner.pipeline import Pipeline
from flows.runner.planning.planner import Planner
from flows.runner.run import Result, look, new_run_id
from flows.runner.warm_start import champion_named
from flows.runner.work_folders import clean
from tasks.artifact import Meta
from tasks.errors import BlobLost, ConfigError, TrnflowError
from tasks.keys.canonical_json import digest_of
from tasks.keys.explain import difference
from tasks.keys.key_document import key_document, key_of
from tasks.keys.lineage import start_of
from tasks.promotion.bootstrap import Comparison
from tasks.store import Store
from tasks.store.lease import Holder, Lease, LeaseLost, Waiter
from tasks.system.redaction import scrubbed

WAIT_SECONDS = 2.0
"""The pause between two looks of a retraining that waits for another one of the same recipe."""

FOLLOWING = ("shards", "weights")
"""The inputs in consolidate's key that follow from train's key, or from the model that training started from."""

PARTS = {"code": "the code", "params": "settings", "inputs": "inputs", "env": "libraries", "accel": "the device"}
"""Part of a key document -> how a sentence names it."""

Train = Callable[[Recipe, Pipeline], Result]
"""Runs a recipe's pipeline and writes the run record; the command line and Prefect pass their own."""


class Change(NamedTuple):
    """Whether a recipe must be trained again.

    Attributes:
        is_changed: Whether data, code or settings differ from those of the newest judged model.
        why: The reason in a sentence.
        recipe: The recipe, with `train.warm_start_from` fixed to the present champion if it named `@champion`.
        champion: Digest of the present champion; None if there is none.
        challenger: Digest of the newest judged model; None if no model was judged.
        frozen: The newest frozen rows; None if there are none.
    """

    is_changed: bool
    why: str
    recipe: Recipe
    champion: str | None
    challenger: str | None
    frozen: Frozen | None

    def to_json(self) -> Meta:
        frozen = self.frozen.artifact.digest if self.frozen else None
        names = ("champion", "challenger", "why")
        found = {name: getattr(self, name) for name in names}
        return {"schema": 1, "recipe": self.recipe.name, "changed": self.is_changed, **found, "frozen": frozen}


@dataclass(frozen=True)
class Retrained:
    """How a retraining ended.

    Attributes:
        recipe: The recipe's name.
        run: The id of the run that trained; None if nothing was trained.
        changed: Whether data, code or settings differed from those of the newest judged model; False also if that was not
            found out.
        promoted: Whether the new model is the champion now.
        stopped: Whether a check stopped the retraining before training.
        champion: Digest of the model that is the champion now; None if there is none.
        challenger: Digest of the model that was judged; None if none was.
        frozen: Digest of the frozen rows on which models are compared; None if there are none.
        why: The reason in a sentence.
        comparison: How challenger and champion compare; None if they were not compared.
        margin: The setting `promote.margin`.
        error: Why the retraining failed or was interrupted; None if it ended well.
        notes: Sentences to show to the user.
    """

    recipe: str
    run: str | None
    changed: bool
    why: str
    promoted: bool = False
    stopped: bool = False
    champion: str | None = None
    challenger: str | None = None
    frozen: str | None = None
    comparison: Comparison | None = None
    margin: float = 0.0
    error: TrnflowError | None = None
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> str:
        """Return `failed`, `unchanged`, `stopped`, `promoted` or `kept`."""
        if self.error is not None:
            return "failed"
        if not self.changed:
            return "unchanged"
        return "stopped" if self.stopped else "promoted" if self.promoted else "kept"

    @property
    def exit_code(self) -> int:
        """Return the exit code of `trnflow retrain`."""
        return self.error.exit_code if self.error else int(self.stopped)

    def to_json(self) -> Meta:
        names = (
            "recipe", "run", "changed", "promoted", "stopped", "champion", "challenger", "frozen", "why",
        )  # fmt: skip
        document = {"schema": 1, **{name: getattr(self, name) for name in names}, "metrics": self._metrics()}
        document["report"] = f"trnflow report {self.run}" if self.run else None
        if self.error is not None:
            document["error"] = {"stage": self.error.stage or None, **self.error.to_json()}
        return document

    def _metrics(self) -> Meta | None:
        found = self.comparison
        if found is None:
            return None
        return {
            "name": found.metric, "champion": found.champion, "challenger": found.challenger,
            "difference": found.difference, "interval": [found.low, found.high], "margin": self.margin,
        }  # fmt: skip


def find_change(recipe: Recipe, store: Store, *, offline: bool = False) -> Change:
    """Find out whether a recipe must be trained again, without running a stage.

    Resolves the recipe's sources. offline: make no requests to a hub.

    Raises:
        ConfigError: A source can't be found.
        BlobLost: The store has lost the frozen rows.
    """
    fixed = recipe.model_copy(
        update={"train": recipe.train.model_copy(update={"warm_start_from": _start(recipe, store)})}
    )
    found, frozen, judged = champions_of(store, recipe.name), newest_frozen(recipe, store), newest_judged(store, recipe)
    planner = look(fixed, store, _pipeline(frozen), offline=offline)
    run = store.run(judged["run"]) if judged else None
    why = _difference(planner, store, run) if run else f"no model of {recipe.name} was judged in this store yet"
    champion = found[0].document["artifact"] if found else None
    challenger = model_in(run) if run else None
    if not why:
        return Change(False, _unchanged(judged, challenger), fixed, champion, challenger, frozen)
    return Change(True, why, fixed, champion, challenger, frozen)


def retrain(
    recipe: Recipe,
    store: Store,
    listeners: tuple[Listener, ...],
    train: Train,
    *,
    offline: bool = False,
    wait: bool = False,
) -> Retrained:
    """Retrain a recipe if its data, code or settings changed since its newest judged model.

    If the recipe has no frozen rows, its present test rows are frozen before training.

    Args:
        listeners: Called with the events of the stages that freeze and score.
        train: Runs the pipeline, with listeners of its own.
        offline: Whether to make no requests to a model or data hub.
        wait: Whether to wait while another process retrains this recipe; otherwise end at once as unchanged.

    Returns:
        How it ended. A TrnflowError of training or of the comparison is returned in `error`.
    """
    try:
        clean(store)
        with _lease(recipe, store, wait=wait) as lease:
            if isinstance(lease, str):
                why = f"another retrain of {recipe.name} is under way: {lease}"
                return _with_present(recipe, store, Retrained(recipe.name, None, False, why))
            return _retrain(recipe, store, listeners, train, lease, offline=offline)
    except TrnflowError as error:
        failed = scrubbed(error)
        return _with_present(recipe, store, Retrained(recipe.name, None, False, failed.message, error=failed))


def unchanged(change: Change) -> Retrained:
    """Return how a retraining ends that finds nothing changed."""
    frozen = change.frozen.artifact.digest if change.frozen else None
    name, champion, challenger = change.recipe.name, change.champion, change.challenger
    return Retrained(name, None, False, change.why, champion=champion, challenger=challenger, frozen=frozen)


def _retrain(
    recipe: Recipe, store: Store, listeners: tuple[Listener, ...], train: Train, lease: Lease, *, offline: bool
) -> Retrained:
    change = find_change(recipe, store, offline=offline)
    if not change.is_changed:
        return unchanged(change)
    begun = Retrained(recipe.name, None, True, change.why, champion=change.champion, margin=recipe.promote.margin)
    try:
        frozen = change.frozen or freeze(recipe, store, listeners, offline=offline)
        begun = replace(begun, frozen=frozen.artifact.digest)
        result = train(change.recipe, _pipeline(frozen))
        begun = replace(begun, run=result.run, notes=tuple(result.notes))
        if result.error is not None:
            return replace(begun, error=result.error, why=result.error.message)
        lease.check()
        decision = _decided(recipe, store, of_run(store, result.run, recipe.name), frozen, listeners, offline=offline)
        done = _judged(begun, decision)
        lease.check()
        write_judged(store, recipe.name, result.run, done.to_json())
    except LeaseLost as error:
        return replace(begun, changed=False, why=f"another retrain of {recipe.name} took over: {error}")
    except TrnflowError as error:
        return replace(begun, error=scrubbed(error), why=scrubbed(error).message)
    lost = None if decision.challenger == decision.champion else decision.challenger
    note = mirror(recipe, store, champions_of(store, recipe.name), lost, decision.comparison)
    return replace(done, notes=(*done.notes, note)) if note else done


def _decided(
    recipe: Recipe,
    store: Store,
    challenger: Contender,
    frozen: Frozen,
    listeners: tuple[Listener, ...],
    *,
    offline: bool,
) -> Decision:
    """Promote or keep. A model that was rolled back stays so, and a promotion that an earlier retrain was killed after is
    told now."""
    digest, found = challenger.artifact.digest, champions_of(store, recipe.name)
    last = next((one for one in found if digest in (one.document["artifact"], one.document["replaces"])), None)
    if last is not None and (last.document["replaces"], last.document["action"]) == (digest, ROLLED_BACK):
        why = f"the model was rolled back in champion {last.number}; `trnflow promote {recipe.name}` compares it again"
        return Decision(False, found[0].number, found[0].document["artifact"], digest, None, frozen, False, why)
    decision = promote(recipe, store, challenger, listeners, frozen=frozen, offline=offline)
    champion, judged = found[0].document if found else None, newest_judged(store, recipe)
    if champion is None or (champion["artifact"], champion["action"]) != (digest, PROMOTED):
        return decision
    is_news = judged is None or judged["created"] < champion["created"]
    return decision._replace(promoted=True, why=champion["why"]) if is_news else decision


def _with_present(recipe: Recipe, store: Store, done: Retrained) -> Retrained:
    """A retraining that judged nothing, with the present champion and frozen rows where the store can be read."""
    try:
        found, frozen = champions_of(store, recipe.name), newest_frozen(recipe, store)
    except TrnflowError:
        return done
    champion = found[0].document["artifact"] if found else None
    return replace(done, champion=champion, frozen=frozen.artifact.digest if frozen else None)


def _pipeline(frozen: Frozen | None) -> Pipeline:
    """The pipeline without the training rows whose texts are among the frozen rows."""
    return replace(FINETUNE, call_stages=partial(finetune, frozen=frozen.artifact)) if frozen else FINETUNE


def _judged(begun: Retrained, decision: Decision) -> Retrained:
    return replace(
        begun, promoted=decision.promoted, champion=decision.champion, challenger=decision.challenger,
        frozen=decision.frozen.artifact.digest, comparison=decision.comparison, why=decision.why,
    )  # fmt: skip


def _start(recipe: Recipe, store: Store) -> str | None:
    """The setting `train.warm_start_from`; a name with `@champion` as that of the present champion, `NAME@N`."""
    text = recipe.train.warm_start_from
    name = champion_named(text)
    if name is None or not text or not text.endswith("@champion"):
        return text
    found = champions_of(store, name)
    if not found and name != recipe.name:
        raise ConfigError(
            f"train.warm_start_from: {name} has no champion", "check the name; `trnflow champions` lists them"
        )
    return f"{name}@{found[0].number}" if found else None


def _difference(planner: Planner, store: Store, run: Meta) -> str:
    """Say how a recipe differs from what made the model of a run; "" if it does not. The model that training starts from
    does not count."""
    keys = {stage["stage"]: stage["key"] for stage in run.get("stages", [])}
    present = planner.documents.get("train")
    if present is None:
        return _first_difference(planner, store, keys)
    trained, consolidated = (
        store.record(stage, keys[stage]) if keys.get(stage) else None for stage in ("train", "consolidate")
    )
    if trained is None or consolidated is None:
        return "the store has lost how the newest judged model was made"
    try:
        consolidation = _consolidation(planner, store, trained["artifact"])
        lost = store.missing(store.artifact(consolidated["artifact"]))
    except BlobLost as error:
        return f"the store has lost the newest judged model: {error.message}"
    pairs = {
        "train": (start_of(trained["document"])[0], start_of(present)[0]),
        "consolidate": (_settled(consolidated["document"]), consolidation),
    }
    for stage, (was, now_is) in pairs.items():
        if key_of(was) != key_of(now_is):
            return _said(stage, was, now_is)
    return f"the store has lost {lost.path} of the newest judged model" if lost else ""


def _first_difference(planner: Planner, store: Store, keys: dict[str, str]) -> str:
    """Say how the first stage that would run differs from that stage of the newest judged model. keys: {stage: key} of
    its run."""
    due = next(one for one in planner.outcomes.values() if one.action in ("run", "maybe"))
    record = store.record(due.stage, keys[due.stage]) if keys.get(due.stage) else None
    present = planner.documents.get(due.stage)
    said = _said(due.stage, record["document"], present) if record and present else ""
    return said or f"{due.stage}: {due.why}"


def _said(stage: str, was: Meta, now_is: Meta) -> str:
    """Say in one sentence how two key documents of a stage differ; "" if they do not."""
    changes = difference(was, now_is)
    names = PARTS | ({"inputs": "the data"} if stage == "load_data" else {})
    parts = dict.fromkeys(names.get(one.part, one.part) for one in changes)
    shown = [one for one in changes if one.part != "inputs"][:2] or changes[:1]
    return f"{' and '.join(parts)} changed ({stage}: {'; '.join(str(one) for one in shown)})" if changes else ""


def _consolidation(planner: Planner, store: Store, shards: str) -> Meta:
    """The key document that consolidate would have for a checkpoint. shards: its digest."""
    call = planner.calls["consolidate"]
    inputs = {**call.inputs, "shards": store.artifact(shards)}
    inputs.pop("warm_start", None)
    return _settled(key_document(call.stage, call.config, inputs, store.memo))


def _settled(document: Meta) -> Meta:
    """A key document of consolidate without the inputs that follow from the training, or from the model it started from."""
    inputs = {name: item for name, item in document["inputs"].items() if name not in FOLLOWING}
    return {**document, "inputs": inputs}


def _unchanged(judged: Meta | None, challenger: str | None) -> str:
    document = (judged or {}).get("document", {})
    verdict = "promoted" if document.get("promoted") else "not promoted"
    return f"data, code and settings are those of the newest judged model {str(challenger)[:19]}, which was {verdict}"


@contextmanager
def _lease(recipe: Recipe, store: Store, *, wait: bool) -> Iterator[Lease | str]:
    """Hold the lease of a recipe's retraining. Yields the lease, or as text who holds it.

    A holder that seems silent is watched for its time to live, also without `wait`: a killed process of another machine or
    container leaves its lease behind."""
    key = digest_of({"retrain": recipe.name}).removeprefix("sha256:")
    run = new_run_id()
    waiter: Waiter = store.waiter(key, run=run, attempt=run, ttl=recipe.store.lease_ttl_seconds)
    lease, begun = waiter.take(), time.monotonic()
    while lease is None and (wait or _is_worth_a_look(waiter.holder, time.monotonic() - begun)):
        time.sleep(WAIT_SECONDS)
        lease = waiter.take()
    if lease is None:
        yield str(waiter.holder or "another process")
        return
    with lease:
        yield lease


def _is_worth_a_look(holder: Holder | None, looked: float) -> bool:
    return holder is not None and holder.seems_silent and looked < holder.ttl + 2 * WAIT_SECONDS
