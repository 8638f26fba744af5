"""What a rehearsal asks beside running the stages: remarks on the rows, space on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from trnflow.flows.finetune import ROLES, remarks_of_columns, remarks_of_fields
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.memory_check import checkpoint_bytes
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import StoreError
from trnflow.tasks.store import Store

if TYPE_CHECKING:
    from trnflow.tasks.metadata import RowsMeta
    from trnflow.tasks.training.memory.estimate import Memory


def remarks_of(recipe: Recipe, sampled: Artifact) -> Iterator[str]:
    """Yield remarks on columns that nothing reads, and labels that train lacks."""
    meta = cast("RowsMeta", sampled.meta)
    yield from remarks_of_columns(recipe, sampled.meta)
    counts = meta.get("label_counts", {})
    for split in counts:
        unseen = [name for name, rows in counts[split].items() if rows and not counts["train"][name]]
        if unseen:
            yield f"{split} has labels of which train has no row: {', '.join(unseen[:3])}"


def remarks_of_texts(recipe: Recipe, texts: Artifact, tokens: Artifact) -> Iterator[str]:
    """Yield remarks on fields that nothing reads, on rows without an answer, and on rows that are too long."""
    yield from remarks_of_fields(recipe, texts.meta)
    if lost := {reason: count for reason, count in texts.meta["dropped"].items() if count}:
        yield f"rows left out of the sample: {', '.join(f'{count} {reason}' for reason, count in lost.items())}"
    overlong, rows = sum(tokens.meta["overlong"].values()), sum(texts.meta["splits"].values())
    if overlong:
        yield f"{overlong} of {rows} texts of the sample are longer than tokenize.max_length"


def check_disk(recipe: Recipe, store: Store, memory: Memory | None, parameters: int) -> None:
    """Raise StoreError unless checkpoints, the published model and its export fit on the store's disk; the least that
    they take, by the traced memory."""
    width = 4 if recipe.consolidate.dtype == "float32" else 2
    states = checkpoint_bytes(recipe.training, store, memory) if memory else 0
    try:
        store.check_space(states + 2 * width * parameters, int(recipe.store.min_free_gb * 1e9))
    except StoreError as error:
        error.message = error.message.replace("this stage needs", "checkpoints, model and export need")
        error.args, error.stage = (error.message,), ROLES["training"]
        raise
