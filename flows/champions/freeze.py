"""Freeze a recipe's test rows: make an artifact of them and name it in `roots/frozen/<name>/<n>.json`.

All models of a recipe are compared on the same frozen rows, whatever its data becomes later.
"""

from __future__ import annotations

from flows.champions.frozen_rows import Frozen
from flows.recipes.recipe import Recipe
from flows.runner.executor import Listener
from flows.runner.run import Options, heal, new_runner
from flows.runner.runner import Runner
from flows.runner.work_folders import clean
from tasks.artifact import Artifact
from tasks.errors import BlobLost, StoreError
from tasks.load_data import data_source, load_data
from tasks.promotion.freeze_rows import FreezeConfig, freeze_rows
from tasks.store import Store
from tasks.store.garbage.numbered_roots import FROZEN, add_numbered, numbered, remove_numbered
from tasks.system.clock import now


def freeze(recipe: Recipe, store: Store, listeners: tuple[Listener, ...], *, offline: bool = False) -> Frozen:
    """Freeze the test rows of a recipe's present data under the next number; earlier frozen rows stay as they are.

    Runs `load_data` if it is not cached. offline: make no requests to a data hub.

    Raises:
        DataError: The data has no test split.
    """
    clean(store)
    runner = new_runner(recipe, store, Options(offline=offline), listeners)
    heal(runner, lambda: _call_stages(runner, recipe))
    store.memo.save()
    made = runner.outcomes["freeze_rows"]
    assert made.artifact is not None
    records = [{"stage": "freeze_rows", "key": made.key}]
    document = {
        "schema": 1,
        "recipe": recipe.name,
        "artifact": made.artifact.digest,
        "records": records,
        "created": now(),
    }
    number = 0
    while not number:
        found = numbered(store.backend, FROZEN, recipe.name)
        taken = (found[0].number if found else 0) + 1
        if add_numbered(store.backend, FROZEN, recipe.name, taken, document | {"number": taken}):
            number = taken
    secure_named(store, FROZEN, recipe.name, number, made.artifact)
    return Frozen(number, made.artifact)


def secure_named(store: Store, kind: str, name: str, number: int, artifact: Artifact) -> None:
    """Bring back what a numbered root names, if garbage collection took it just before the root was created.

    Raises:
        StoreError: It is gone for good; the root is removed again.
    """
    try:
        store.secure([], artifact)
    except BlobLost as error:
        remove_numbered(store.backend, kind, name, number)
        raise StoreError(f"{artifact.digest[:19]} was collected meanwhile: {error.message}", "run it again") from error


def _call_stages(runner: Runner, recipe: Recipe) -> None:
    source = runner.resolve(data_source, recipe.data)
    rows = runner(load_data, recipe.data, source, None)
    runner(freeze_rows, FreezeConfig(), rows)
