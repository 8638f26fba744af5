"""Find a recipe's frozen rows, and plan a retrain, which leaves them out of training.

Frozen rows are test rows that the store keeps to compare all models of a recipe on them. `trnflow retrain` drops the
training rows that have the same text as a frozen row; `trnflow run` does not.
"""

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
    """Frozen rows of a recipe. number: counted from 1; artifact: the rows, made by the stage `freeze_rows`."""

    number: int
    artifact: Artifact

    def to_json(self) -> Meta:
        return {"number": self.number, "artifact": self.artifact.digest, "rows": self.artifact.meta["rows"]}


def newest_frozen(recipe: Recipe, store: Store, ledger: Ledger | None = None) -> Frozen | None:
    """Return the newest frozen rows of a recipe; None if there are none. Raises BlobLost. ledger: the recipe's, if it
    was read already."""
    rows = (ledger or read_ledger(store, recipe.name)).stands["frozen"]
    return Frozen(rows["number"], store.artifact(rows["artifact"])) if rows else None


def old_frozen(store: Store, name: str, days: float) -> str:
    """Return a note for the user that the newest frozen rows of a recipe are old; "" if they are not, or if there are
    none.

    name: the recipe's name; days: the age from which frozen rows count as old (`promote.frozen_days`).
    """
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
    """Return the graph of a retrain: that of `trnflow run`, except that training rows with the text of a frozen row are
    dropped."""
    return finetune(recipe, frozen.artifact if frozen else None)


def plan_retrain(recipe: Recipe, store: Store) -> Plan | None:
    """Plan a retrain with a recipe's present data and settings, without a request to a hub; None if the recipe has no
    frozen rows. BlobLost when the store has lost them."""
    frozen = newest_frozen(recipe, store)
    return plan_of(finetune_without(recipe, frozen), recipe, store) if frozen else None


def other_model(recipe: Recipe, store: Store, planned: Plan) -> str:
    """Return a note for the user if `trnflow retrain` has made a model with a recipe's present data and settings, but
    `trnflow run` has not: a run would train a different model, also on rows that the retrain dropped. Else return "".

    planned: the plan of `trnflow run`."""
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
