"""Check before a run whether training fits in a device's memory.

One training pass is traced (`trnflow.tasks.training.memory`), and the measurement cached in the home; a result of precompile
in the store has it too. Before the data stages, rows are as long as `pack.chunk_length` or the largest of `pack.lengths`;
without these there is but an upper bound, by which no run is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypedDict

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.forecast import ANYWAY
from trnflow.flows.runner.plan import Plan
from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.config import keyed_params
from trnflow.tasks.data.pack.packers import ALIGN
from trnflow.tasks.errors import MachineError, ModelError, ProcessFailed, TrnflowError
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.store import Store
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.devices import known_memory
from trnflow.tasks.training.memory.estimate import Memory, check_memory, gib
from trnflow.tasks.training.memory.trace_process import Traced, trace_in_process, trace_key

ROW_FIELDS = ("task", "lengths", "labels", "vocab_size", "pad_id", "bos_id", "eos_id", "new_tokens")
"""The metadata of packed rows on which the measured memory depends."""

STATE = 1.5
"""Bytes of a checkpoint for each byte of AdamW's two moments: the fp32 weights are saved beside them."""

UNTRACED = "not traced yet: `plan --trace` traces it, and `run` does before it runs a data stage"
UNKNOWN = "not known before tokenize_text has run: the size of the tokenizer's vocabulary is a part of it"


class MemoryDocument(TypedDict):
    """What `trnflow plan --json` prints. estimate: {use: bytes on each device}; device_bytes: a device has; micro_batch: rows
    of a replica in one forward pass. None if unknown."""

    estimate: Meta | None
    device_bytes: int | None
    exact: bool
    micro_batch: int | None
    fits: bool | None
    why: str


@dataclass(frozen=True)
class MemoryReport:
    """The memory that training needs, compared with what a device has.

    Attributes:
        config: `micro_batch: auto` is replaced if `memory` is known.
        limit: The memory of a device in bytes.
        memory: On each device; None if unknown, because of `why`.
        exact: Whether the rows to train on are packed already: else `memory` is an estimate.
        error: With which a run would be refused.
    """

    config: TrainConfig
    limit: int | None
    memory: Memory | None = None
    exact: bool = False
    why: str = ""
    error: TrnflowError | None = None

    def to_json(self) -> MemoryDocument:
        return {
            "estimate": self.memory.to_json() if self.memory else None,
            "device_bytes": self.limit,
            "exact": self.exact,
            "micro_batch": self.config.replica_batch if self.memory else None,
            "fits": None if self.memory is None or self.limit is None else self.memory.total <= self.limit,
            "why": self.why,
        }

    def __str__(self) -> str:
        if self.memory is None:
            return f"memory   {self.why}"
        of = f" of {gib(self.limit)}" if self.limit is not None else ""
        size = f"{'' if self.exact else 'about '}{gib(self.memory.total)}{of} GiB a device"
        return f"memory   {size} ({self.memory}) in {self.memory.at}, micro batch {self.config.replica_batch}"


class Rows(NamedTuple):
    """What is known before a run of the rows that training will read.

    Attributes:
        meta: The ROW_FIELDS of the metadata of `pack_chunks`, real or expected.
        packed: Whether the store has the rows.
        sure: Whether the real rows are at least as long and the vocabulary as large: what does not fit now never will.
    """

    meta: Meta
    packed: bool
    sure: bool


Trace = Callable[[TrainConfig, Source, Meta, int | None], Traced]


def report_memory(recipe: Recipe, plan: Plan, trace: Trace | None = None) -> MemoryReport:
    """Return how much memory training needs: as precompile's result says, else the cache of measurements, else `trace`.

    trace: measures in a child process, which takes seconds; None: what was never measured stays unknown.
    """
    config, limit = recipe.training, known_memory(recipe.training)
    graphs = plan.roles["graphs"].artifact
    if graphs is not None and graphs.meta.get("memory") is not None:
        config, memory = config.with_micro_batch(graphs.meta["micro_batch"]), Memory.from_json(graphs.meta["memory"])
        return MemoryReport(config, limit, memory, exact=True, error=_refusal(config, memory, limit, plan))
    rows = expected_rows(recipe, plan)
    if not rows.meta["vocab_size"] and plan.sources["model"].identity["config"]["pretrained"] is None:
        return MemoryReport(config, limit, why=UNKNOWN)
    try:
        traced = _traced(config, plan.sources["model"], plan.store.memo, rows.meta, limit, trace)
    except (ModelError, MachineError, ProcessFailed) as error:
        refused = error if rows.sure and isinstance(error, ModelError) and _trains(plan) else None
        return MemoryReport(config, limit, why=f"could not be traced: {error.message}", error=refused)
    if traced is None or traced.memory is None:
        return MemoryReport(config, limit, why=traced.why if traced else UNTRACED)
    config = config.with_micro_batch(traced.micro_batch)
    refusal = _refusal(config, traced.memory, limit, plan) if rows.sure else None
    return MemoryReport(config, limit, traced.memory, rows.packed, error=refusal)


def refuse_what_cannot_fit(recipe: Recipe, plan: Plan, environ: Mapping[str, str], preload: tuple[str, ...]) -> None:
    """Raise ModelError if training can't fit in the device's memory: before the data stages run, not after them.

    Does nothing if the model is in the store, with `train.allow_overcommit`, if memory or row length is unknown, and for
    packed rows, which precompile checks. Takes seconds, unless it is cached. environ, preload: variables and imported
    modules of the process that the trace is forked from.
    """
    if known_memory(recipe.training) is None or recipe.training.allow_overcommit or not _trains(plan):
        return
    rows = expected_rows(recipe, plan)
    if rows.packed or not rows.sure:
        return
    limited = partial(trace_in_process, memory_gib=recipe.launch.memory_gib)
    report = report_memory(recipe, plan, partial(limited, environ=environ, preload=preload))
    if report.error is not None:
        raise report.error


def checkpoint_bytes(config: TrainConfig, store: Store, memory: Memory) -> int:
    """Return the fewest bytes of the kept checkpoints on the store's disk, of a remote store on the home's."""
    split = config.fsdp or config.zero1
    sharded = config.devices // config.dp_replicate_size if split else config.tensor_parallel_size
    # a store elsewhere takes the states; the home's disk holds one at a time
    kept = config.keep_checkpoints if store.backend.local else 1
    return kept * int(STATE * memory.optimizer * sharded)


def fit_to_machine(recipe: Recipe, model: Source, memo: Memo, trace: Trace | None) -> Recipe:
    """Return a recipe for which this machine's GPUs were chosen with activation checkpointing if one row does not fit
    without, and with FSDP if the state does not.

    Rows are those of the settings alone, so that the choice stays when the data stages have run. trace: as for
    `report_memory`; without it, and without an earlier measurement, nothing is chosen.
    """
    config, limit = recipe.training, known_memory(recipe.training)
    if limit is None or config.device != "cuda" or not recipe.leaves_open("train.remat", "train.fsdp"):
        return recipe
    rows = _rows_of_settings(recipe, model).meta
    shards = {"fsdp": True} if config.data_parallel > 1 and not config.zero1 else None
    for update in ({}, {"remat": True}, shards, shards and {**shards, "remat": True}):
        if update is not None:
            traced = _traced(config.model_copy(update=update), model, memo, rows, limit, trace)
            if traced is None or traced.memory is None:
                break
            if traced.memory.total <= limit:
                fitting = recipe.changed({f"train.{name}": value for name, value in update.items()})
                added = "".join(f"; train.{name}=true, for memory" for name in update)
                fitting._read = replace(fitting._read, machine=fitting.machine + added)
                return fitting
    return recipe


def expected_rows(recipe: Recipe, plan: Plan) -> Rows:
    """Return what is known of the training rows: from the packed ones, else by the settings and the tokens."""
    packed, tokens = plan.roles["chunks"].artifact, plan.roles["tokens"].artifact
    if packed is not None:
        return Rows({name: packed.meta.get(name) for name in ROW_FIELDS}, packed=True, sure=True)
    rows = _rows_of_settings(recipe, plan.sources["model"])
    if tokens is None:
        return rows
    meta = {**{name: tokens.meta.get(name) for name in ROW_FIELDS}, "lengths": rows.meta["lengths"]}
    return Rows(meta, packed=False, sure=not _longest(recipe)[1])


def _rows_of_settings(recipe: Recipe, model: Source) -> Rows:
    """Return the properties of the training rows as far as the settings say."""
    length, is_bound = _longest(recipe)
    trained, kind = recipe.tokenize.train, FORMATS[recipe.format.task]
    # a pretrained model's config has it; of one from scratch it may not be known yet
    is_pretrained = model.identity["config"]["pretrained"] is not None
    vocabulary = 0 if is_pretrained else trained.vocab_size if trained else None
    meta = {
        "task": kind.name,
        "labels": list(recipe.data.labels or kind.foreseen(recipe.format) or ("no", "yes")) if kind.per_row else None,
        "vocab_size": vocabulary or 0,
        # arbitrary ids: memory does not depend on them
        **{"pad_id": 0, "bos_id": 1, "eos_id": 2, "new_tokens": [*range(len(recipe.tokenize.new_tokens))]},
        "lengths": [length],
    }
    return Rows(meta, packed=False, sure=not is_bound and vocabulary is not None)


def _longest(recipe: Recipe) -> tuple[int, bool]:
    """Return (tokens of the longest row, whether that is only an upper bound)."""
    pack = recipe.pack
    if pack.strategy != "bucket":
        return pack.chunk_length, False
    if pack.lengths:
        return pack.lengths[-1], False
    kind, settings = FORMATS[recipe.format.task], keyed_params(recipe.format)
    longest = recipe.tokenize.max_length * (kind.head(settings)["texts"] if kind.apart else 1)
    return min(pack.chunk_length, -(-longest // ALIGN) * ALIGN), True


def _traced(
    config: TrainConfig, model: Source, memo: Memo, rows: Meta, limit: int | None, trace: Trace | None
) -> Traced | None:
    """Return the cached measurement, else that of `trace`, which is cached; None without either."""
    key = trace_key(config, model, rows, limit, memo)
    found = memo.get("memory", key, "")
    if found is None and trace is not None:
        found = trace(config, model, rows, limit).to_json()
        memo.put("memory", key, "", found)
        memo.save()
    return Traced.from_json(found) if found is not None else None


def _trains(plan: Plan) -> bool:
    """Return whether a run would run the training stage."""
    return plan.roles["training"].action not in ANYWAY


def _refusal(config: TrainConfig, memory: Memory, limit: int | None, plan: Plan) -> ModelError | None:
    """Return the error with which a run would be refused; None if training fits or can't be judged."""
    if not _trains(plan):
        return None
    try:
        check_memory(config, memory, limit)
    except ModelError as error:
        return error
    return None
