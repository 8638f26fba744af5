"""Freeze a recipe's test rows."""

from __future__ import annotations

from trnflow.flows.champions.frozen_rows import Frozen
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.graph import Graph, Node, source_of
from trnflow.flows.runner.run import settle
from trnflow.flows.runner.work_folders import clean
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import BlobLost, StoreError
from trnflow.tasks.events import EventLog
from trnflow.tasks.load_data import data_source, load_data
from trnflow.tasks.promotion.freeze_rows import FreezeConfig, freeze_rows
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import append_ledger, read_ledger, remove_newest
from trnflow.tasks.store.ledger.entries import Entry, NewEntry


def freeze(context: RunContext, log: EventLog) -> Frozen:
    """Keep the test rows of a recipe's present data as its newest frozen rows, by an entry of its ledger.

    log: gets the stages' events.

    Raises:
        DataError: The data has no test split.
        StoreError: gc removed the rows just before the entry was added; the entry is removed again.
    """
    recipe, store = context.recipe, context.store
    clean(store)
    rows = Node(load_data, recipe.data, {"source": source_of(data_source, recipe.data), "frozen": None})
    graph = Graph((rows, Node(freeze_rows, FreezeConfig(), {"rows": rows})))
    freezing = context.for_run(log, kind="freeze")
    step = settle(graph, freezing).steps["freeze_rows"]
    assert step.artifact is not None
    entry_of_rows = NewEntry(
        outcome="frozen", by="freeze", why="the test rows were frozen", frozen=step.artifact.digest,
        records=[{"stage": "freeze_rows", "key": step.key}],
    )  # fmt: skip
    entry = None
    while entry is None:
        entry = append_secured(store, recipe.name, entry_of_rows, read_ledger(store, recipe.name).number, step.artifact)
    assert entry["number"] is not None
    return Frozen(entry["number"], step.artifact)


def append_secured(store: Store, recipe: str, new: NewEntry, after: int, artifact: Artifact) -> Entry | None:
    """Add an entry to a ledger, and bring its artifact back from the trash. Return None if another writer was first.

    Raises StoreError if the artifact is gone for good; the entry is removed again.
    """
    entry = append_ledger(store, recipe, new, after)
    if entry is not None:
        try:
            # gc may have moved it just before
            store.restore([], artifact)
        except BlobLost as error:
            remove_newest(store, recipe, entry["n"])
            lost = f"{artifact.digest[:19]} was collected meanwhile: {error.message}"
            raise StoreError(lost, "run it again") from error
    return entry
