"""Find out whether a recipe must be trained again, without running a stage."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple, TypedDict

from trnflow.flows.champions.budget import changed_settings
from trnflow.flows.champions.contenders import model_in
from trnflow.flows.champions.frozen_rows import Frozen, finetune_without, newest_frozen
from trnflow.flows.champions.own_judges import CHECKS, is_checked
from trnflow.flows.finetune import ROLES
from trnflow.flows.recipes.names import model_name
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.retraining.ended import data_digest
from trnflow.flows.runner.context import RunContext, make_plan
from trnflow.flows.runner.graph import Node
from trnflow.flows.runner.plan import Plan
from trnflow.tasks.documents import KeyDocument, RunRecord
from trnflow.tasks.errors import BlobLost, ConfigError
from trnflow.tasks.keys.explain import difference
from trnflow.tasks.keys.key_document import key_document, key_of
from trnflow.tasks.keys.lineage import start_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import Ledger, read_ledger
from trnflow.tasks.store.ledger.entries import REFUSED
from trnflow.tasks.store.model_names import CHAMPION

FOLLOWING = ("shards", "weights", "dtype")
"""Inputs in consolidate's key that follow from train's, or from the model that training started from."""


TRAIN, CONSOLIDATE = ROLES["training"], ROLES["model"]
REASONS = {
    "code": "the code", "params": "settings", "inputs": "inputs", "env": "libraries", "accel": "the device",
    "schema": "the form of keys",
}  # fmt: skip
"""{table of a key document: its name in a sentence}"""


class ReasonDocument(TypedDict):
    """What `trnflow retrain --dry-run --json` prints of a reason: digests, and why."""

    schema: int
    recipe: str
    changed: bool
    champion: str | None
    challenger: str | None
    why: str
    frozen: str | None


class RetrainReason(NamedTuple):
    """Whether a recipe must be trained again, and why.

    Attributes:
        context: Has the plan of the training; `@champion` in `train.warm_start_from` is the present champion's number.
        champion, challenger: Digests of the champion and the newest judged model, or None.
        data: The digest of the present data.
        ledger: The number of the ledger's newest entry.
    """

    is_changed: bool
    why: str
    context: RunContext
    champion: str | None
    challenger: str | None
    frozen: Frozen | None
    data: str
    ledger: int

    @property
    def recipe(self) -> Recipe:
        return self.context.recipe

    def to_json(self) -> ReasonDocument:
        return {
            "schema": 1, "recipe": self.recipe.name, "changed": self.is_changed, "champion": self.champion,
            "challenger": self.challenger, "why": self.why, "frozen": self.frozen.artifact.digest if self.frozen else None,
        }  # fmt: skip


def find_change(context: RunContext) -> RetrainReason:
    """Return whether (`is_changed`) and why to retrain. Changed files are hashed, URLs and hubs asked.

    Raises ConfigError if a source can't be found, BlobLost if the store has lost the frozen rows.
    """
    recipe, store = context.recipe, context.store
    train = recipe.train.model_copy(update={"warm_start_from": _start(recipe, store)})
    fixed = recipe.model_copy(update={"train": train})
    ledger = read_ledger(store, recipe.name)
    frozen, judged = newest_frozen(recipe, store, ledger), ledger.judged
    training = context.with_recipe(fixed)
    plan = training.plan = make_plan(finetune_without(fixed, frozen), training)
    run = store.run(str(judged["run"])) if judged else None
    why = _difference(plan, store, run) if run else f"no model of {recipe.name} was judged in this store yet"
    champion = ledger.champion["champion"] if ledger.champion else None
    challenger = model_in(run) if run else None
    data = data_digest(plan.sources["data"])
    elsewhere = fixed.on_machine_of(run["resolved"]) if why and run else None
    if run and elsewhere is not None:
        # workers of two kinds would else train each other's models again, in turns
        planned = make_plan(finetune_without(elsewhere, frozen), context.with_recipe(elsewhere))
        why = why if _difference(planned, store, run, portable=True) else ""
    why = why or _judged_otherwise(training, ledger)
    verdict = "promoted" if judged and judged["outcome"] == "promoted" else "not promoted"
    same = f"data, code and settings are those of the newest judged model {str(challenger)[:19]}, which was {verdict}"
    same += ", on another machine" if elsewhere else ""
    return RetrainReason(bool(why), why or same, training, champion, challenger, frozen, data, ledger.number)


def _judged_otherwise(context: RunContext, ledger: Ledger) -> str:
    """Say that the newest model was kept by other settings or checks than the present ones, or ""."""
    judged, champion, recipe = ledger.judged, ledger.champion, context.recipe
    if judged is None or judged["outcome"] != "kept":
        return ""
    if champion is not None and champion["champion"] == judged["challenger"]:
        return ""
    if changed := changed_settings(judged["settings"], recipe.promote):
        return f"{' and '.join(changed)} changed since the newest model was judged"
    if not judged["scores"] or not judged["frozen"]:
        return ""
    other = f"{CHECKS} changed since the newest model was judged"
    if not recipe.promote.checks:
        return other if judged["why"].startswith(REFUSED) else ""
    with suppress(BlobLost):
        same = is_checked(context, judged["scores"], champion["scores"] if champion else None, judged["frozen"])
        return "" if same else other
    return ""


def _start(recipe: Recipe, store: Store) -> str | None:
    """Return `train.warm_start_from`, `@champion` as the present champion's number."""
    text = recipe.train.warm_start_from
    parsed = model_name(text, recipe.folder("train.warm_start_from")) if text else None
    if parsed is None or parsed.which != CHAMPION:
        return text
    name = parsed.recipe
    champions = read_ledger(store, name).stands["champions"]
    if not champions and name != recipe.name:
        raise ConfigError(
            f"train.warm_start_from: {name} has no champion", "check the name; `trnflow champions` lists them"
        )
    return f"{name}@{champions[0]['number']}" if champions else None


def _difference(plan: Plan, store: Store, run: RunRecord, *, portable: bool = False) -> str:
    """Say how a recipe differs from what made the model of a run, or "". portable: leave out what a machine decides."""
    keys = {stage["stage"]: stage["key"] for stage in run.get("stages", []) if stage["key"]}
    trained, consolidated = (
        store.record(stage, keys[stage]) if stage in keys else None for stage in (TRAIN, CONSOLIDATE)
    )
    graphs = trained["document"]["inputs"].get("graphs") if trained and portable else None
    present = _training(plan, store, graphs) if graphs else plan.steps[TRAIN].document
    if present is None:
        return _first_difference(plan, store, keys)
    if trained is None or consolidated is None:
        return "the store has lost how the newest judged model was made"
    try:
        consolidation = _consolidation(plan, store, trained["artifact"])
        lost = store.missing(store.artifact(consolidated["artifact"]))
    except BlobLost as error:
        return f"the store has lost the newest judged model: {error.message}"
    pairs = {
        # each promotion changes the model that training starts from: that is no change of the recipe
        TRAIN: (start_of(trained["document"])[0], start_of(present)[0]),
        CONSOLIDATE: (_settled(consolidated["document"]), consolidation),
    }
    for stage, (was, now_is) in pairs.items():
        if portable:
            was, now_is = _portable(was), _portable(now_is)
        if key_of(was) != key_of(now_is):
            return _said(stage, was, now_is)
    return f"the store has lost {lost.path} of the newest judged model" if lost else ""


def _portable(document: KeyDocument) -> KeyDocument:
    """Return a key document without the device, and without the builds of libraries, such as `+cu128`."""
    env = {name: version.partition("+")[0] for name, version in document["env"].items()}
    return {**document, "env": env, "accel": {}}


def _training(plan: Plan, store: Store, graphs: str) -> KeyDocument | None:
    """Return the key document that train would have with the graphs of another machine; None if an input is not known."""
    step = plan.steps[TRAIN]
    inputs = {**plan.inputs_of(step), "graphs": store.artifact(graphs)}
    if any(isinstance(each, Node) for each in inputs.values()):
        return None
    return key_document(step.node.stage, step.config, inputs, store.memo)


def _first_difference(plan: Plan, store: Store, keys: dict[str, str]) -> str:
    """Say how the first stage that would run differs from the newest judged model's. keys: {stage: key} of its run."""
    due = next(step for step in plan.steps.values() if step.action in ("run", "maybe"))
    record = store.record(due.name, keys[due.name]) if due.name in keys else None
    present = due.document
    sentence = _said(due.name, record["document"], present) if record and present else ""
    return sentence or f"{due.name}: {due.why}"


def _said(stage: str, was: KeyDocument, now_is: KeyDocument) -> str:
    """Say in one sentence how two key documents of a stage differ, or ""."""
    changes = difference(was, now_is)
    names = REASONS | ({"inputs": "the data"} if stage == ROLES["rows"] else {})
    parts = dict.fromkeys(names.get(change.part, change.part) for change in changes)
    shown = [change for change in changes if change.part != "inputs"][:2] or changes[:1]
    return f"{' and '.join(parts)} changed ({stage}: {'; '.join(str(change) for change in shown)})" if changes else ""


def _consolidation(plan: Plan, store: Store, shards: str) -> KeyDocument:
    """Return the key document that consolidate would have for a checkpoint's digest."""
    step = plan.steps[CONSOLIDATE]
    inputs = {**plan.inputs_of(step), "shards": store.artifact(shards)}
    inputs.pop("warm_start", None)
    return _settled(key_document(step.node.stage, step.config, inputs, store.memo))


def _settled(document: KeyDocument) -> KeyDocument:
    """Return a key document of consolidate without FOLLOWING."""
    inputs = {name: value for name, value in document["inputs"].items() if name not in FOLLOWING}
    return {**document, "inputs": inputs}
