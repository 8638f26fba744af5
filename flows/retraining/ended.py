"""How the newest retrain of a recipe ended, and the digest of its present data."""

from __future__ import annotations

from typing import NamedTuple

from trnflow.flows.finetune import rows_source
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.retraining.outcome import Retrained
from trnflow.flows.runner.context import context_of
from trnflow.tasks.artifact import Source
from trnflow.tasks.errors import Interrupted
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import append_ledger, read_ledger
from trnflow.tasks.store.ledger.entries import Entry, NewEntry


class Ended(NamedTuple):
    """How the newest retrain of a recipe ended.

    Attributes:
        created: ISO 8601, UTC.
        data: The digest of its data, None if it failed before.
        settled: The data of the newest retrain that did not fail: it is not trained on again.
        failures: Retrains in a row that failed on `data`.
    """

    outcome: str
    created: str
    data: str | None
    settled: str | None
    failures: int


def data_digest(data: Source) -> str:
    """Return a digest of a recipe's data: of its bytes, or of a hub dataset's commit."""
    return digest_of(data.identity)


def present_data(recipe: Recipe, store: Store, *, offline: bool = False) -> str:
    """Return the digest of a recipe's present data; changed files are hashed. Raises ConfigError, DataError."""
    source = rows_source(recipe).find(store, context_of(recipe, store, offline=offline).resolver)
    store.memo.save()
    return data_digest(source)


def newest_ended(store: Store, name: str) -> Ended | None:
    """Return how the newest retrain of the recipe `name` ended, or None. Raises StoreError."""
    stands = read_ledger(store, name).stands
    return Ended(**stands["ended"], settled=stands["settled"], failures=stands["failures"]) if stands["ended"] else None


def write_ended(store: Store, ended: Retrained, data: str | None) -> Entry | None:
    """Add to the ledger how a retrain ended that judged no model, and return the entry. data: a digest, if known. Raises
    StoreError."""
    if isinstance(ended.error, Interrupted) or ended.entry is not None:
        return None
    entry = None
    while entry is None:
        ledger = read_ledger(store, ended.recipe)
        # nothing changed in data that is settled: no entry
        if ended.outcome == "unchanged" and data is not None and ledger.stands["settled"] == data:
            return None
        entry = append_ledger(store, ended.recipe, entry_of(ended, data), ledger.number)
    return entry


def entry_of(ended: Retrained, data: str | None) -> NewEntry:
    """Return the ledger's entry about a retrain that judged no model."""
    error = ended.error.placed() if ended.error else None
    return NewEntry(
        outcome=ended.outcome, by="retrain", why=ended.why, run=ended.run, data=data, challenger=ended.challenger,
        frozen=ended.frozen, checks=list(ended.checks), error=error,
    )  # fmt: skip
