"""How the newest retrain of a recipe ended, by the recipe's ledger, and the digest of the recipe's present data, which
`trnflow watch` compares with that retrain's.
"""

from __future__ import annotations

from typing import NamedTuple

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.retraining.outcome import Retrained
from trnflow.flows.runner.context import context_of
from trnflow.tasks.artifact import Source
from trnflow.tasks.errors import Interrupted
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.load_data import data_source
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import append_ledger, read_ledger
from trnflow.tasks.store.ledger.entries import NewEntry


class Ended(NamedTuple):
    """How the newest retrain of a recipe ended.

    Attributes:
        outcome: `promoted`, `kept`, `unchanged`, `stopped` (by a check of the data) or `failed`.
        created: When it ended, as ISO 8601 text in UTC.
        data: The digest of the data that was to be trained on; None if the retrain failed before the data was found.
        settled: The digest of the data of the newest retrain that did not fail, so that this data is not trained on
            again; None if there was none.
        failures: The number of retrains that failed on the data `data`, one after the other; 0 unless `outcome` is `failed`.
    """

    outcome: str
    created: str
    data: str | None
    settled: str | None
    failures: int


def data_digest(data: Source) -> str:
    """Return a digest that identifies a recipe's data: it changes with the bytes of the data, or with the commit of a
    hub dataset, but not with the name or the time of a file. data: the source that `data_source` returned for the
    recipe's section `data`."""
    return digest_of(data.identity)


def present_data(recipe: Recipe, store: Store, *, offline: bool = False) -> str:
    """Return the digest of a recipe's data as it is now: of its bytes, or of the commit of a hub dataset. Each new or
    changed local file is read once to hash it; a file that was hashed before and has not changed is not read.

    offline: make no requests to a hub.

    Raises:
        ConfigError: There is no data, or the hub can't be reached.
        DataError: A file can't be read.
    """
    found = data_source(recipe.data, context_of(recipe, store, offline=offline).resolver)
    store.memo.save()
    return data_digest(found)


def newest_ended(store: Store, name: str) -> Ended | None:
    """Return how the newest retrain of the recipe `name` ended; None if no retrain of it has ended in this store. Raises
    StoreError if the ledger can't be read."""
    stands = read_ledger(store, name).stands
    return Ended(**stands["ended"], settled=stands["settled"], failures=stands["failures"]) if stands["ended"] else None


def write_ended(store: Store, ended: Retrained, data: str | None) -> None:
    """Add to the recipe's ledger how a retrain ended that judged no model. An interrupted retrain, and one that found
    nothing changed in data that is settled, add nothing.

    data: the digest of the data that was to be trained on; None if it was not found. Raises StoreError.
    """
    if isinstance(ended.error, Interrupted) or ended.entry is not None:
        return
    entry = None
    while entry is None:
        ledger = read_ledger(store, ended.recipe)
        if ended.outcome == "unchanged" and data is not None and ledger.stands["settled"] == data:
            return
        entry = append_ledger(store, ended.recipe, entry_of(ended, data), ledger.number)


def entry_of(ended: Retrained, data: str | None) -> NewEntry:
    """Return the ledger's entry about a retrain that judged no model."""
    error = None
    if ended.error is not None:
        error = {"stage": ended.error.stage or None, **ended.error.to_json()}
    return NewEntry(
        outcome=ended.outcome, by="retrain", why=ended.why, run=ended.run, data=data, challenger=ended.challenger,
        frozen=ended.frozen, checks=list(ended.checks), error=error,
    )  # fmt: skip
