"""How the newest retrain of a recipe ended: the file `roots/retrained/<name>.json`.

`trnflow watch` compares the data of this file with the source. Garbage collection keeps the file, and nothing that it names.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from flows.recipes.recipe import Recipe
from flows.retraining.outcome import Retrained
from flows.runner.run import resolver_of
from tasks.artifact import Meta, Source
from tasks.errors import Interrupted, StoreError
from tasks.keys.canonical_json import digest_of
from tasks.load_data import data_source
from tasks.store import Store
from tasks.store.garbage.numbered_roots import RETRAINED, quoted_name
from tasks.store.layout import read_object
from tasks.system.clock import now

SETTLED = ("promoted", "kept", "unchanged", "stopped")
"""The outcomes after which a recipe is not trained again on the same data."""


class Ended(NamedTuple):
    """How the newest retrain of a recipe ended.

    Attributes:
        outcome: `promoted`, `kept`, `unchanged`, `stopped` or `failed`.
        created: When it ended, in UTC.
        data: The digest of the data that it was about; None if it failed before the data was found.
        settled: The digest of the data of the newest retrain whose outcome is one of SETTLED; None if there was none.
        failures: The number of retrains that failed on the data `data`, one after the other; 0 unless `outcome` is `failed`.
        document: The JSON of `trnflow retrain`.
    """

    outcome: str
    created: str
    data: str | None
    settled: str | None
    failures: int
    document: Meta


def data_digest(data: Source) -> str:
    """Return a digest that changes with the bytes of a recipe's data, or with the commit of a hub dataset. data: what the
    recipe's section `data` resolved to. The name and the time of a file do not count."""
    return digest_of(data.identity)


def present_data(recipe: Recipe, store: Store, *, offline: bool = False) -> str:
    """Look at a recipe's data and return its digest. A local file that did not change since the last look costs one stat.

    offline: make no requests to a hub.

    Raises:
        ConfigError: There is no data, or the hub can't be reached.
        DataError: A file can't be read.
    """
    found = data_source(recipe.data, resolver_of(recipe, store, offline=offline))
    store.memo.save()
    return data_digest(found)


def newest_ended(store: Store, name: str) -> Ended | None:
    """Return how the newest retrain of the recipe `name` ended; None if none has ended.

    Raises:
        StoreError: The file can't be read.
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
    """Replace the file of the newest retrain of a recipe, unless the retrain was interrupted.

    data: the digest of the data that it was about; None if it failed before the data was found.

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
