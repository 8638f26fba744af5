"""How the newest retrain of a recipe ended: the file `roots/retrained/<name>.json`.

`trnflow watch` compares the digest of the data in this file with that of the recipe's present data. Garbage collection
keeps the file, but not the artifacts that the file names.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.retraining.outcome import Retrained
from trnflow.flows.runner.context import context_of
from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.errors import Interrupted, StoreError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.load_data import data_source
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.numbered_roots import RETRAINED, quoted_name
from trnflow.tasks.store.layout import read_object
from trnflow.tasks.system.clock import now

SETTLED = ("promoted", "kept", "unchanged", "stopped")
"""The outcomes after which a recipe is not trained again on the same data."""


class Ended(NamedTuple):
    """How the newest retrain of a recipe ended.

    Attributes:
        outcome: `promoted` (the new model is the champion, which the recipe's users get), `kept` (the old champion
            stays), `unchanged` (there was nothing to train), `stopped` (by a check of the data) or `failed`.
        created: When it ended, as ISO 8601 text in UTC.
        data: The digest of the data that was to be trained on; None if the retrain failed before the data was found.
        settled: The digest of the data of the newest retrain that did not fail, so that this data is not trained on
            again; None if there was none.
        failures: The number of retrains that failed on the data `data`, one after the other; 0 unless `outcome` is `failed`.
        document: The document that `trnflow retrain --json` prints: how the retrain ended.
    """

    outcome: str
    created: str
    data: str | None
    settled: str | None
    failures: int
    document: Meta


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
    """Return how the newest retrain of the recipe `name` ended; None if no retrain of it has ended in this store.

    Raises:
        StoreError: The store's file about this retrain, `roots/retrained/<name>.json`, can't be read.
    """
    place = _place(name)
    try:
        found = read_object(store.backend.read(place))
        return Ended(**{field: found[field] for field in Ended._fields})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        fix = "remove the file: the next retrain writes it"
        raise StoreError(f"{place} can't be read: {error}", fix) from error


def write_ended(store: Store, done: Retrained, data: str | None) -> None:
    """Write how a retrain ended to the store, in `roots/retrained/<name>.json`, which replaces the file of an earlier
    retrain of the recipe. Write nothing if the retrain was interrupted.

    done: how the retrain ended; data: the digest of the data that was to be trained on, None if the retrain failed
    before the data was found.

    Raises:
        StoreError: The file can't be written.
    """
    if isinstance(done.error, Interrupted):
        return
    try:
        before = newest_ended(store, done.recipe)
    except StoreError:
        before = None
    failures, settled = 0, data
    if done.outcome not in SETTLED:
        failures = 1 + (before.failures if before and before.data == data else 0)
        settled = before.settled if before else None
    ended = Ended(done.outcome, now(), data, settled, failures, done.to_json())
    document = {"schema": 1, "recipe": done.recipe, **ended._asdict()}
    store.backend.replace(_place(done.recipe), json.dumps(document, indent=1, sort_keys=True).encode())


def _place(name: str) -> str:
    return f"{RETRAINED}/{quoted_name(name)}.json"
