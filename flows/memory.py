"""What `plan` says of memory: what training holds on a device, and what the device has."""

from __future__ import annotations

from typing import Any, NamedTuple

from flows.forecast import ANYWAY
from flows.plan import Planner
from flows.settings import Recipe
from tasks.artifact import Meta
from tasks.errors import ModelError
from tasks.training.config import TrainConfig
from tasks.training.devices import known_memory
from tasks.training.estimates import of_numbers
from tasks.training.fitting import fitting
from tasks.training.memory import Memory, check_memory, gib


class Outlook(NamedTuple):
    """memory: None where the model's family is not known; limit: bytes a device has, None where nobody says; exact: as
    precompile found it; config: micro batch found; error: what a run would be refused with."""

    config: TrainConfig
    memory: Memory | None
    limit: int | None
    exact: bool
    error: ModelError | None

    def to_json(self) -> Meta:
        return {
            "estimate": self.memory.to_json() if self.memory else None,
            "device_bytes": self.limit,
            "exact": self.exact,
            "micro_batch": self.config.replica_batch if self.memory else None,
            "fits": None if self.memory is None or self.limit is None else self.memory.total <= self.limit,
        }

    def __str__(self) -> str:
        if self.memory is None:
            part = "a part of the model is trained" if self.config.method != "full" else ""
            return f"memory   precompile will tell: {part or 'this family of models is not known by its numbers'}"
        of = f" of {gib(self.limit)}" if self.limit is not None else ""
        size = f"{'' if self.exact else 'about '}{gib(self.memory.total)}{of} GiB a device"
        return f"memory   {size} ({self.memory}) in {self.memory.at}, micro batch {self.config.replica_batch}"


def outlook(recipe: Recipe, planner: Planner) -> Outlook:
    """error: only of a training that is yet to run."""
    config, limit = recipe.training, known_memory(recipe.training)
    memory: Memory | None
    graphs = planner.outcomes["precompile"].artifact
    exact = graphs is not None and graphs.meta.get("memory") is not None
    if graphs is not None and exact:
        said = {name: value for name, value in graphs.meta["memory"].items() if name != "total"}
        config, memory = config.settled(graphs.meta["micro_batch"]), Memory(**said)
    else:
        config, memory = _expected(config, recipe, planner, limit)
    error = None
    if memory is not None and planner.outcomes["train"].action not in ANYWAY:
        try:
            check_memory(config, memory, limit)
        except ModelError as refused:
            error = refused
    return Outlook(config, memory, limit, exact, error)


def _expected(
    config: TrainConfig, recipe: Recipe, planner: Planner, limit: int | None
) -> tuple[TrainConfig, Memory | None]:
    model, packed = planner.sources["model"], _packed(recipe, planner)

    def estimated(candidate: TrainConfig) -> Memory | None:
        return of_numbers(candidate, model, packed)

    config = fitting(config, estimated, limit)
    return config, estimated(config)


def _packed(recipe: Recipe, planner: Planner) -> Meta:
    """What the packed rows say, or the recipe of them."""
    packed, tokens = (planner.outcomes[name].artifact for name in ("pack_chunks", "tokenize_text"))
    if packed is not None:
        return packed.meta
    trained = recipe.tokenize.train
    expected: dict[str, Any] = {
        "task": "classification" if recipe.format.task == "classification" else "causal_lm",
        "lengths": [_longest(recipe)],
        "labels": recipe.data.labels or ("no", "yes"),
        "vocab_size": trained.vocab_size if trained else None,
    }
    return (
        expected if tokens is None else {**expected, **{name: tokens.meta[name] for name in ("labels", "vocab_size")}}
    )


def _longest(recipe: Recipe) -> int:
    """Tokens of the longest row that there may be."""
    pack = recipe.pack
    longest = pack.lengths[-1] if pack.lengths else pack.chunk_length
    return min(longest, recipe.tokenize.max_length) if pack.strategy in ("pad", "bucket") else longest
