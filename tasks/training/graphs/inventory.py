"""List a training's graphs by tracing every step on the real shapes, without data or weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import Workdir
from trnflow.tasks.training.batches.sampler import Batch
from trnflow.tasks.training.choose_engine import make_engine
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.devices import check_device
from trnflow.tasks.training.engine import Engine
from trnflow.tasks.training.graph_registry import GraphRegistry
from trnflow.tasks.training.graphs.flops import flops_per_row
from trnflow.tasks.training.model.adapters import forward_passes, prepared
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.model.pretrained import at_random
from trnflow.tasks.training.optim.optimizer import scalars
from trnflow.tasks.training.world import ALONE, World

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta


def inventory(
    config: TrainConfig, model: Source, packed: Input[PackedMeta], out: Workdir, world: World = ALONE
) -> list[Meta]:
    """Return {name, length (0 for any), hash, inputs (shape, dtype), flops (0 if uncounted)} of each graph, by name and
    length.

    world: of one process a device (xla), each lists its own.
    """
    check_device(config)
    built = prepared(config, build(model, packed, seed=0, weights=False), packed.meta)
    registry = GraphRegistry()
    engine = make_engine(config, built, registry, world=world)
    lengths = packed.meta["lengths"]
    for number, length in enumerate(lengths, start=1):
        batch = blank(config.global_batch, length, packed.meta)
        engine.train(batch, scalars(config, 0, 1, batch.supervised), seed=0)
        engine.evaluate(next(batch.micro_batches(config.micro_rows)))
        out.progress(number, len(lengths), "lengths")
    cost = forward_passes(built)
    rows = {"train": cost * config.global_batch, "accumulate": cost * config.micro_rows, "eval": config.micro_rows}
    for graph in registry.graphs.values():
        graph["flops"] = int(rows.get(graph["name"], 0) * flops_per_row(built, graph["length"]))
    return [registry.graphs[key] for key in sorted(registry.graphs)]


def random_engine(config: TrainConfig, model: Source, packed: Input[PackedMeta], world: World = ALONE) -> Engine:
    """Return an engine of the model with random weights, whose graphs nobody lists."""
    built = prepared(config, build(model, packed, seed=0, weights=True, loads=at_random), packed.meta)
    return make_engine(config, built, GraphRegistry(), world=world)


def blank(rows: int, length: int, meta: PackedMeta) -> Batch:
    """Return a batch of id 0 without padding, for tracing."""
    zeros, kind = np.zeros((rows, length), np.int32), kind_of(meta["task"])
    targets = np.zeros(kind.target_shape(rows, length, len(meta["labels"] or ())), kind.target_type)
    reference = np.zeros((rows, meta["documents"]), np.float32) if kind.pairs else None
    return Batch(length, zeros, targets, zeros + 1, zeros, samples=rows, reference=reference)
