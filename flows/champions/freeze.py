"""Freeze a recipe's test rows: keep them as an artifact that the store's file `roots/frozen/<recipe>/<n>.json` names.

The models of a recipe are compared on its newest frozen rows (the highest n), even after the recipe's data changed.
"""

from __future__ import annotations

from trnflow.flows.champions.frozen_rows import Frozen
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import context_of
from trnflow.flows.runner.graph import Graph, Node, source_of
from trnflow.flows.runner.run import settle
from trnflow.flows.runner.work_folders import clean
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import BlobLost, StoreError
from trnflow.tasks.events import EventLog
from trnflow.tasks.load_data import data_source, load_data
from trnflow.tasks.promotion.freeze_rows import FreezeConfig, freeze_rows
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.numbered_roots import FROZEN, add_numbered, numbered, remove_numbered
from trnflow.tasks.system.clock import now


def freeze(recipe: Recipe, store: Store, log: EventLog, *, offline: bool = False) -> Frozen:
    """Keep the test rows of a recipe's present data as its newest frozen rows, on which models are then compared.

    Runs the stage `load_data` if it is not cached, and creates the file `roots/frozen/<recipe>/<n>.json` in the store,
    with the next free n. Frozen rows are fixed: they stay the same when the recipe's data changes. Earlier ones are
    kept.

    Args:
        log: Gets the events of the stages.
        offline: Make no requests to a data hub.

    Raises:
        DataError: The data has no test split.
        StoreError: Garbage collection removed the rows just before the file was created; the file is removed again.
    """
    clean(store)
    rows = Node(load_data, recipe.data, {"source": source_of(data_source, recipe.data), "frozen": None})
    graph = Graph((rows, Node(freeze_rows, FreezeConfig(), {"rows": rows})))
    context = context_of(recipe, store, offline=offline).for_run(log, kind="freeze")
    made = settle(graph, context).steps["freeze_rows"]
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
    """Make sure that the artifact which a new numbered root names is in the store, and bring it back from the trash if
    garbage collection moved it there just before the root was created.

    A numbered root is a file `<kind>/<name>/<n>.json` in the store, which says that garbage collection must keep an
    artifact: a recipe's champion (the model that its users should get) or its frozen rows (fixed test rows).

    Args:
        kind: `roots/champions` or `roots/frozen`.
        name: The recipe's name.
        number: The n of the root's file.
        artifact: The artifact that the root names.

    Raises:
        StoreError: The artifact is gone for good; the root is removed again.
    """
    try:
        store.secure([], artifact)
    except BlobLost as error:
        remove_numbered(store.backend, kind, name, number)
        raise StoreError(f"{artifact.digest[:19]} was collected meanwhile: {error.message}", "run it again") from error
