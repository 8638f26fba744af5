"""A recipe's frozen rows, and the plan of a retrain, which leaves them out of training; `trnflow run` does not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from trnflow.flows.finetune import ROLES, finetune
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import plan_of
from trnflow.flows.runner.graph import Graph
from trnflow.flows.runner.plan import Plan
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.errors import BlobLost
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import Ledger, read_ledger


class Frozen(NamedTuple):
    """Frozen rows of a recipe. number: counted from 1."""

    number: int
    artifact: Artifact

    def to_json(self) -> Meta:
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
    """Return the graph of a retrain."""
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
