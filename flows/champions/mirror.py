"""Show a recipe's champion in MLflow's model registry, by a small MLflow run.

The caller never waits for MLflow, and an error of MLflow never stops a promotion.
"""

from __future__ import annotations

from trnflow.flows.champions.promote import Decision
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import new_run_id
from trnflow.flows.services.mlflow_listener import new_tracker, record_champion
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import read_ledger
from trnflow.tasks.system.redaction import scrub


def mirror(recipe: Recipe, store: Store, decision: Decision | None = None) -> str | None:
    """Record the recipe's champion for MLflow; return a sentence for the user if that fails, else None.

    decision: of the promotion that was tried; None after a rollback.
    """
    try:
        return _mirror(recipe, store, decision)
    except (TrnflowError, OSError) as error:
        return f"MLflow does not show the champion: {scrub(str(error))}"


def _mirror(recipe: Recipe, store: Store, decision: Decision | None) -> str | None:
    ledger = read_ledger(store, recipe.name)
    champion = ledger.champion
    assert champion is not None
    tracker = new_tracker(recipe, store.home, new_run_id(), {"trnflow.action": champion["outcome"]})
    if tracker is None:
        return None
    if champion["frozen"]:
        tracker.dataset(f"{recipe.name} frozen rows", champion["frozen"], context="evaluation")
    lost = decision.challenger if decision and decision.challenger != decision.champion else None
    record_champion(tracker, ledger, lost, _figures(decision))
    return tracker.finish("FINISHED", wait_seconds=0.0)


def _figures(decision: Decision | None) -> Meta:
    if decision is None or decision.comparison is None:
        return {}
    compared = decision.comparison.to_json()
    return {name: compared[name] for name in ("champion", "challenger", "difference", "low", "high")}
