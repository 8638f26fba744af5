"""Freeze a recipe's test rows, and plan a retrain, which leaves them out of training; `trnflow run` does not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple, TypedDict

from trnflow.flows.finetune import ROLES, finetune, loading
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import RunContext, plan_of
from trnflow.flows.runner.graph import Graph, Node
from trnflow.flows.runner.plan import Plan
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import BlobLost, StoreError
from trnflow.tasks.events import EventLog
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import Ledger, append_ledger, read_ledger, remove_newest
from trnflow.tasks.store.ledger.entries import Entry, NewEntry


class FrozenDocument(TypedDict):
    """artifact: its digest; rows: how many."""

    number: int
    artifact: str
    rows: int


class Frozen(NamedTuple):
    """Frozen rows of a recipe. number: counted from 1."""

    number: int
    artifact: Artifact

    def to_json(self) -> FrozenDocument:
        return {"number": self.number, "artifact": self.artifact.digest, "rows": self.artifact.meta["rows"]}


def newest_frozen(recipe: Recipe, store: Store, ledger: Ledger | None = None) -> Frozen | None:
    """Return a recipe's newest frozen rows, or None. Raises BlobLost."""
    rows = (ledger or read_ledger(store, recipe.name)).stands["frozen"]
    return Frozen(rows["number"], store.artifact(rows["artifact"])) if rows else None


def old_frozen(store: Store, name: str, days: float) -> str:
    """Return a note that a recipe's newest frozen rows are older than `days`, or ""."""
    ledger = read_ledger(store, name)
    rows = ledger.stands["frozen"]
    if rows is None:
        return ""
    created = ledger.entry(rows["entry"])["created"]
    age = (datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds() / 86400
    if age < days:
        return ""
    return f"the frozen rows {rows['number']} of {name} are {age:.0f} days old: `trnflow freeze {name}` renews them"


def finetune_without(recipe: Recipe, frozen: Frozen | None) -> Graph:
    return finetune(recipe, frozen.artifact if frozen else None)


def plan_retrain(recipe: Recipe, store: Store) -> Plan | None:
    """Plan a retrain, without asking a hub; None if the recipe has no frozen rows. Raises BlobLost."""
    frozen = newest_frozen(recipe, store)
    return plan_of(finetune_without(recipe, frozen), recipe, store) if frozen else None


def other_model(recipe: Recipe, store: Store, planned: Plan) -> str:
    """Return a note if a retrain made a model of these data and settings and `trnflow run` has not, else "".

    planned: the plan of `trnflow run`.
    """
    if planned.steps[ROLES["model"]].action == "hit":
        return ""
    try:
        retrained = plan_retrain(recipe, store)
    except BlobLost:
        return ""
    model = retrained.steps[ROLES["model"]].artifact if retrained else None
    rows = retrained.steps[ROLES["rows"]].artifact if retrained else None
    if model is None or rows is None:
        return ""
    dropped = rows.meta["dropped"].get("frozen", 0)
    return (
        f"a retrain made the model {model.digest[:19]} of these settings and data, without {dropped} training rows that "
        f"are among the frozen rows. `trnflow run` trains on them too, and so makes another model"
    )


def freeze(context: RunContext, log: EventLog) -> Frozen:
    """Keep the test rows of a recipe's present data as its newest frozen rows, by an entry of its ledger.

    Raises DataError if the data has no test split, StoreError if gc removed the rows just before the entry was added.
    """
    # `plan` imports this module, and runs nothing
    from trnflow.flows.runner.run import settle
    from trnflow.flows.runner.run_log import begin_log
    from trnflow.flows.runner.work_folders import clean
    from trnflow.tasks.promotion.freeze_rows import FreezeConfig, freeze_rows

    recipe, store = context.recipe, context.store
    clean(store)
    rows = loading(recipe)
    graph = Graph((rows, Node(freeze_rows, FreezeConfig(), {"rows": rows})))
    freezing = context.for_run(log, kind="freeze")
    with begin_log(freezing):
        plan = settle(graph, freezing)
        artifact = plan.artifact("freeze_rows")
        new = NewEntry(
            outcome="frozen", by="freeze", why="the test rows were frozen", frozen=artifact.digest,
            records=[{"stage": "freeze_rows", "key": str(plan.steps["freeze_rows"].key)}],
        )  # fmt: skip
        entry = None
        while entry is None:
            entry = append_secured(store, recipe.name, new, read_ledger(store, recipe.name).number, artifact)
        log.write("decided", entry=dict(entry))
    assert entry["number"] is not None
    return Frozen(entry["number"], artifact)


def append_secured(store: Store, recipe: str, new: NewEntry, after: int, artifact: Artifact) -> Entry | None:
    """Add an entry to a ledger, and bring its artifact back from the trash. Return None if another writer was first.

    Raises StoreError if the artifact is gone for good; the entry is removed again.
    """
    entry = append_ledger(store, recipe, new, after)
    if entry is not None:
        try:
            # gc may have moved it just before
            store.restore([], artifact)
        except BlobLost as error:
            remove_newest(store, recipe, entry["n"])
            lost = f"{artifact.digest[:19]} was collected meanwhile: {error.message}"
            raise StoreError(lost, "run it again") from error
    return entry
