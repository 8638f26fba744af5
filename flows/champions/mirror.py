"""Show a recipe's champion in MLflow's model registry, by a small MLflow run.

The caller never waits for MLflow, and an error of MLflow never stops a promotion.
"""

from __future__ import annotations

from trnflow.flows.champions.promote import Decision
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import context_of
from trnflow.flows.runner.mlflow_log import trackers, write_champion
from trnflow.flows.runner.run_log import begin_log
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.events import EventLog
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import read_ledger
from trnflow.tasks.store.ledger.entries import OUT_OF_BOUNDS, REFUSED
from trnflow.tasks.system.redaction import scrub


def mirror(recipe: Recipe, store: Store, decision: Decision | None = None) -> str | None:
    """Write an event log for MLflow with the recipe's champion; return a sentence for the user if that fails, else None.

    decision: of the promotion that was tried; None after a rollback.
    """
    try:
        if not recipe.tracking.enabled:
            return None
        ledger = read_ledger(store, recipe.name)
        champion = ledger.champion
        if champion is None:  # the first challenger was refused
            return None
        readers = trackers(recipe, store, wait_seconds=0.0)
        context = context_of(recipe, store).for_run(EventLog(*readers), kind="mirror")
        lost = decision.challenger if decision and decision.challenger != decision.champion else None
        tags: dict[str, str] = {"trnflow.action": champion["outcome"]}
        if decision and decision.why.startswith((REFUSED, OUT_OF_BOUNDS)):
            tags["trnflow.refused"] = decision.why
        with begin_log(context, tags=tags):
            write_champion(
                context.log, store, ledger, challenger=lost, comparison=_figures(decision), frozen=champion["frozen"]
            )
    except (TrnflowError, OSError) as error:
        return f"MLflow does not show the champion: {scrub(str(error))}"
    return readers[0].note or None


def _figures(decision: Decision | None) -> Meta:
    if decision is None or decision.comparison is None:
        return {}
    compared = decision.comparison.to_json()
    return {name: compared[name] for name in ("champion", "challenger", "difference", "low", "high")}
