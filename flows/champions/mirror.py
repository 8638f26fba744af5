"""Show a recipe's champion (the model that its users should get) in MLflow's model registry. A small MLflow run is
recorded for this purpose.

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
    """Record the recipe's present champion (the model that its users should get) for MLflow's model registry. Does
    nothing if `tracking.enabled` is false.

    The record is written to a file, which another process uploads; this function does not wait for the upload.

    Args:
        decision: The result of the promotion that was just tried. MLflow also gets the metrics of the two models that
            were compared, and the digest of a challenger that lost. None after a rollback.

    Returns:
        A sentence for the user if the champion can't be recorded or uploaded, else None. A TrnflowError or OSError is
        not raised, because the store has the champion already.
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
    found = decision.comparison.to_json()
    return {name: found[name] for name in ("champion", "challenger", "difference", "low", "high")}
