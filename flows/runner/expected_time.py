"""Estimate how long a first training takes, before any run has told: from tokens, parameters and this machine's speed.

An order of magnitude, on this machine's processor alone; docs/rehearse.md has predicted and measured seconds. Imports no
torch, and reads at most BYTES of rows.
"""

from __future__ import annotations

import functools
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.forecast import ANYWAY
from trnflow.flows.runner.plan import Plan
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.load_data import is_at_hand
from trnflow.tasks.sources.data_files import COMPRESSED
from trnflow.tasks.system.devices import cores
from trnflow.tasks.training.automatic import chosen, facts, open_settings
from trnflow.tasks.training.config import TrainConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from trnflow.tasks.data.load.readers import RowReader

BYTES = 4 << 20
"""Bytes of rows that are read; of longer files the rest is taken to be like them."""
MOST_LABELS = 10_000
BYTES_A_TOKEN = 4.0
SPECIAL = 2
"""Tokens around a text."""
PADDING = 1.2
"""Positions for each token where rows lie in buckets."""
EFFICIENCY = 0.25
"""Speed of training, for that of the products that are timed."""
LAYER_SECONDS = 1.5e-3
"""Seconds of an update for each layer, however few its FLOPs."""
BEGIN_SECONDS = 3.0
"""Until the first update: the process, weights, evaluation before training."""
SIDE, TIMED_SECONDS = 64, 0.05


class Sizes(NamedTuple):
    """Parameters of a model. products: those of its layers, which are multiplied at each position; embeddings: of one table."""

    layers: int
    width: int
    products: int
    embeddings: int


class Work(NamedTuple):
    """What an epoch reads.

    Attributes:
        rows: Chunks of train.
        positions: Of all of them, padding included.
        outputs: Labels; 0 for none.
    """

    rows: float
    positions: float
    outputs: int


def expect_training(recipe: Recipe, plan: Plan) -> str:
    """Fill in how long the plan's training is expected to take, and say it, if no earlier run tells; else return ""."""
    training = plan.roles["training"]
    if training.action in ANYWAY or training.seconds is not None:
        return ""
    training.seconds = training_seconds(recipe, plan)
    if training.seconds is None:
        return ""
    return f"{training.name} takes about {spoken(training.seconds)} on this machine: an estimate, since no earlier run tells"


def spoken(seconds: float) -> str:
    """Return a time in words, to about a digit."""
    units = (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0), ("second", 1.0))
    unit, size = next(((unit, size) for unit, size in units if seconds >= 1.5 * size), units[-1])
    count = max(1, round(seconds / size))
    count = count if count < 20 else round(count, -1)
    return f"{count} {unit}{'s' if count > 1 else ''}"


def training_seconds(recipe: Recipe, plan: Plan) -> float | None:
    """Return about how many seconds the training of a plan takes on this machine; None where nothing tells: of another
    device, rows that are not in files here, or a number of rows that only a run knows."""
    training = plan.roles["training"]
    config: TrainConfig = training.config  # type: ignore[assignment]
    if (config.engine, config.device, config.dtype) != ("native", "cpu", "float32") or config.objective != "sft":
        return None
    work = _packed(plan) or _in_files(recipe, plan)
    if work is None:
        return None
    model = plan.sources["model"].identity
    if open_settings(config):
        packed: Meta = {"task": FORMATS[recipe.format.task].name, "labels": [""] * work.outputs}
        packed["rows"] = {"train": {"": math.ceil(work.rows)}}
        config = chosen(config, facts(model, packed, starts_warm=config.warm_start_from is not None))
    sizes, updates = sizes_of(model["config"]), _updates(config, work.rows)
    epochs = updates * config.global_batch / max(1.0, work.rows)
    vocabulary = recipe.tokenize.train.vocab_size if recipe.tokenize.train else 0
    heads = 0 if FORMATS[recipe.format.task].per_row else sizes.embeddings or vocabulary * sizes.width
    pairs = 2 * sizes.layers * sizes.width * work.positions / max(1.0, work.rows)
    flops = 2 * (sizes.products + heads + pairs) * _passes(config) * work.positions * epochs
    threads = min(cores(), config.resolved_threads * config.devices)
    speed = EFFICIENCY * threads * flops_per_second()
    return BEGIN_SECONDS + flops / speed + LAYER_SECONDS * sizes.layers * updates


def parameters_of(config: Meta) -> int:
    """Return about how many parameters a model has, by its `identity["config"]`; of experts one is counted."""
    sizes = sizes_of(config)
    return sizes.products + sizes.embeddings


def sizes_of(config: Meta) -> Sizes:
    """Return about how large a model is, by its `identity["config"]`; of experts one is counted."""
    fields = {**(config["pretrained"] or {}), **config["overrides"]}
    fields = fields.get("text_config") or fields

    def size(*names: str, default: int) -> int:
        return next((int(fields[name]) for name in names if isinstance(fields.get(name), int)), default)

    # transformers' defaults, where a config leaves a field out
    width = size("hidden_size", "dim", "d_model", "n_embd", default=768)
    layers = size("num_hidden_layers", "n_layers", "n_layer", "num_layers", default=12)
    inner = size("intermediate_size", "hidden_dim", "d_ff", "n_inner", default=4 * width)
    return Sizes(layers, width, layers * width * (4 * width + 2 * inner), size("vocab_size", default=0) * width)


def flops_per_second() -> float:
    """Return how many FLOPs a second one of this machine's cores does in products of fp32 matrices; takes TIMED_SECONDS."""
    import numpy as np

    # so small a product stays on one thread and ends before others get the core: their load does not matter
    left, right = np.full((2, SIDE, SIDE), 0.5, np.float32)
    begun, fastest = time.perf_counter(), math.inf
    while (at := time.perf_counter()) < begun + TIMED_SECONDS:
        np.matmul(left, right)
        fastest = min(fastest, time.perf_counter() - at)
    return 2 * SIDE**3 / fastest


def _passes(config: TrainConfig) -> float:
    """Return how many forward passes an update costs. A backward pass is two, or one where few weights have gradients."""
    backward = {"full": 2.0, "lora": 1.0, "head": 0.0}[config.method]
    return 1.0 + backward + (1.0 if config.remat and backward else 0.0)


def _updates(config: TrainConfig, rows: float) -> int:
    if config.max_steps is not None:
        return config.max_steps
    assert isinstance(config.epochs, int)
    return math.ceil(rows / config.global_batch) * config.epochs


def _packed(plan: Plan) -> Work | None:
    """Return what an epoch reads where the rows are packed already."""
    packed = plan.roles["chunks"].artifact
    if packed is None:
        return None
    counts = packed.meta["rows"]["train"]
    positions = sum(int(length) * count for length, count in counts.items())
    return Work(sum(counts.values()), positions, len(packed.meta.get("labels") or ()))


def _in_files(recipe: Recipe, plan: Plan) -> Work | None:
    """Return what an epoch will read, by the first rows of the files and their bytes; None for rows that are elsewhere."""
    location = plan.sources["data"].location
    if recipe.data.mix or not is_at_hand(location):
        return None
    from trnflow.tasks.data.load.loading import open_source

    try:
        opened = open_source(location)
        seen = _read(recipe, opened["train"])
    except TrnflowError:  # load_data says what is wrong with the rows
        return None
    paths = [Path(file["path"]) for file in location["files"] if file["split"] == "train"]
    whole = _rows_in(paths, seen)
    if not whole:
        return None
    limit = recipe.data.limit
    most = limit.get("train") if isinstance(limit, dict) else limit
    rows = min(whole * (1 - sum(recipe.data.shares(opened).values())), most or math.inf)
    pack, tokens = recipe.pack, seen.tokens / seen.rows
    if pack.strategy == "pad":
        return Work(rows, rows * pack.chunk_length, seen.outputs)
    if pack.strategy == "bucket":
        return Work(rows, rows * min(PADDING * tokens, pack.chunk_length), seen.outputs)
    return Work(max(1.0, rows * tokens / pack.chunk_length), rows * tokens, seen.outputs)


class _Seen(NamedTuple):
    """The first rows of train. bytes: that they take; is_whole: whether those are all."""

    rows: int
    tokens: float
    bytes: int
    is_whole: bool
    outputs: int


def _read(recipe: Recipe, files: list[RowReader]) -> _Seen:
    """Read rows of train, BYTES of them at most."""
    label, names = _column(recipe, recipe.data.label), _texts(recipe, files[0].schema.names)
    labels: set[Any] = set()
    rows, size, tokens, is_whole = 0, 0, 0.0, True
    for batch in (batch for file in files for batch in file.batches([*file.schema.names])):
        if size > BYTES:
            is_whole = False
            break
        tokens += _tokens(recipe, [batch.column(name) for name in names if name in batch.schema.names])
        if label in batch.schema.names and len(labels) < MOST_LABELS:
            labels |= {*batch.column(label).unique().to_pylist()}
        rows, size = rows + batch.num_rows, size + batch.nbytes
    outputs = len(recipe.data.labels or FORMATS[recipe.format.task].foreseen(recipe.format) or labels)
    return _Seen(rows, tokens, size, is_whole, outputs)


def _column(recipe: Recipe, name: str | None) -> str | None:
    """Return what the source calls a column of ours."""
    return None if name is None else recipe.data.columns.get(name, name)


def _texts(recipe: Recipe, names: list[str]) -> list[str]:
    """Return the columns of a source whose texts the model reads: those that load_data keeps, without targets."""
    data = recipe.loading
    kept = {*data.columns.values(), *(_column(recipe, name) for name in data.texts)} or {*names}
    targets = {_column(recipe, name) for name in recipe.format.targets}
    left_out = {*(data.ignore or ()), *targets, _column(recipe, data.label)}
    return [name for name in names if name in kept and name not in left_out]


def _tokens(recipe: Recipe, columns: list[pa.Array]) -> float:
    """Return about how many tokens the rows of a batch have; columns of numbers count nothing."""
    import pyarrow.compute as pc

    # in Arrow: arrays of numpy would import pandas
    sizes = [size for column in columns if (size := _bytes_of(column)) is not None]
    if not sizes:
        return 0.0
    tokens = pc.divide(functools.reduce(pc.add, sizes), BYTES_A_TOKEN)
    if recipe.tokenize.overlong != "split":
        is_apart = FORMATS[recipe.format.task].apart
        tokens = pc.min_element_wise(tokens, float(recipe.tokenize.max_length * (len(sizes) if is_apart else 1)))
    total: float = pc.sum(tokens).as_py() or 0.0
    return total + SPECIAL * len(tokens)


def _bytes_of(column: pa.Array) -> pa.Array | None:
    """Return the bytes of each value of a column, of nested ones their mean; None for numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = column.storage if isinstance(column.type, pa.JsonType) else column
    if pa.types.is_string(texts.type):
        return pc.cast(pc.fill_null(pc.binary_length(texts), 0), pa.float64())
    if pa.types.is_nested(texts.type):
        return pa.repeat(texts.nbytes / max(1, len(texts)), len(texts))
    return None


def _rows_in(paths: list[Path], seen: _Seen) -> float | None:
    """Return the rows of the files; None for compressed ones of which only the first rows were read."""
    if seen.is_whole:
        return seen.rows
    if all(path.suffix == ".parquet" for path in paths):
        import pyarrow.parquet as pq

        return float(sum(pq.read_metadata(path).num_rows for path in paths))
    if any(path.suffix in COMPRESSED for path in paths):
        return None
    return seen.rows * sum(path.stat().st_size for path in paths) / seen.bytes
