"""Roll back: make the model that the champion replaced the champion again."""

from __future__ import annotations

from trnflow.flows.champions.contenders import no_champion
from trnflow.flows.champions.frozen_rows import append_secured
from trnflow.flows.champions.promote import kept
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.run_log import begin_log
from trnflow.tasks.errors import BlobLost, ConfigError, StoreError
from trnflow.tasks.events import EventLog
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import read_ledger
from trnflow.tasks.store.ledger.entries import Entry, NewEntry


def rollback(context: RunContext, log: EventLog) -> Entry:
    """Make the model that the champion replaced the champion again, and score none; return the ledger's entry. Raises
    ConfigError without an earlier champion, BlobLost if the store has lost its bytes, StoreError if another process changed
    the champion meanwhile."""
    with begin_log(context.for_run(log, kind="rollback")):
        entry = _roll_back(context.recipe, context.store)
        log.write("decided", entry=dict(entry))
    return entry


def _roll_back(recipe: Recipe, store: Store) -> Entry:
    ledger = read_ledger(store, recipe.name)
    champions = ledger.champions()
    if not champions:
        raise no_champion(recipe.name)
    present = champions[0]["champion"]
    won = next(entry for entry in champions if (entry["champion"], entry["outcome"]) == (present, "promoted"))
    earlier = next((entry for entry in champions if entry["champion"] == won["replaces"]), None)
    if earlier is None:
        raise ConfigError(
            f"{recipe.name} has no champion before {str(present)[:19]}, which was the first",
            "`trnflow champions` lists them",
        )
    artifact = store.artifact(str(earlier["champion"]))
    missing = store.missing(artifact)
    if missing is not None:
        raise BlobLost(f"the store has lost {missing.path} of the earlier champion {artifact.digest[:19]}")
    new = NewEntry(
        outcome="rolled back", by="rollback", why=f"rolled back from {str(present)[:19]}", champion=artifact.digest,
        replaces=present, run=earlier["run"], task=earlier["task"], shaping=earlier["shaping"],
        records=earlier["records"], evaluation=kept(store, earlier["evaluation"]),
        frozen=kept(store, earlier["frozen"]), scores=kept(store, earlier["scores"]),
        forced=earlier["forced"],
    )  # fmt: skip
    while True:
        entry = append_secured(store, recipe.name, new, ledger.number, artifact)
        if entry is not None:
            return entry
        ledger = read_ledger(store, recipe.name)
        if ledger.champion is None or ledger.champion["n"] != champions[0]["n"]:
            changed = f"another process changed the champion of {recipe.name} meanwhile"
            raise StoreError(changed, "look, then run it again")
