"""Show a recipe's champion in MLflow, by a small run of its own. MLflow is not waited for, and can't stop a promotion."""

from __future__ import annotations

from flows.recipes.recipe import Recipe
from flows.runner.run import new_run_id
from flows.services.mlflow_listener import new_tracker, record_champion
from tasks.artifact import Meta
from tasks.errors import TrnflowError
from tasks.promotion.bootstrap import Comparison
from tasks.store import Store
from tasks.store.garbage.numbered_roots import Numbered
from tasks.system.redaction import scrub


def mirror(
    recipe: Recipe, store: Store, champions: list[Numbered], challenger: str | None, comparison: Comparison | None
) -> str | None:
    """Record the champion and how it was found, for MLflow's model registry. Does nothing if `tracking.enabled` is false.

    The upload goes on in another process after this function returns.

    Args:
        champions: All champions of the recipe, the present one first.
        challenger: Digest of the model that was compared and lost; None if there is none.

    Returns:
        A sentence for the user if MLflow can't be told, else None. The champion is on record by then, so nothing is raised.
    """
    try:
        return _mirror(recipe, store, champions, challenger, comparison)
    except (TrnflowError, OSError) as error:
        return f"MLflow does not show the champion: {scrub(str(error))}"


def _mirror(
    recipe: Recipe, store: Store, champions: list[Numbered], challenger: str | None, comparison: Comparison | None
) -> str | None:
    document = champions[0].document
    tracker = new_tracker(recipe, store.home, new_run_id(), {"trnflow.action": document["action"]})
    if tracker is None:
        return None
    if document["frozen"]:
        tracker.dataset(f"{recipe.name} frozen rows", document["frozen"], context="evaluation")
    record_champion(tracker, recipe.name, champions, challenger, _figures(comparison))
    return tracker.finish("FINISHED", wait_seconds=0.0)


def _figures(comparison: Comparison | None) -> Meta:
    if comparison is None:
        return {}
    found = comparison.to_json()
    return {name: found[name] for name in ("champion", "challenger", "difference", "low", "high")}
