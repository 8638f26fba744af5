"""List every graph that training will run, and estimate the memory that it takes: steps are traced without data or
weights.

Graphs are compiled on device neuron, and with `train.compile_cache`. Raises ModelError when training does not fit,
MissingDependency.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.config import graph_params
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import Keyed, Known, Workdir, stage, write_json
from trnflow.tasks.training.config import TrainConfig, ranks
from trnflow.tasks.training.devices import cautions, check_torch_xla, known_memory
from trnflow.tasks.training.environment import compiler, environ
from trnflow.tasks.training.graphs.compile_cache import keep_cache
from trnflow.tasks.training.losses import reads_rows

if TYPE_CHECKING:
    from trnflow.tasks.metadata import GraphsMeta, PackedMeta

SCHEMA = 1

SHAPES = ("task", "lengths", "vocab_size", "pad_id", "bos_id", "eos_id", "new_tokens")


def graph_inputs(config: TrainConfig, inputs: Keyed) -> Meta:
    """Return what of the inputs affects a graph: never weights, data or the learning rate."""
    model, packed = inputs["model"], inputs["packed"]
    assert isinstance(model, Source) and isinstance(packed, Artifact)
    shapes = {name: packed.meta.get(name) for name in SHAPES}
    rows = {"row_outputs": True} if reads_rows(config, kind_of(packed.meta["task"])) else {}
    if config.engine == "xla" and "documents" in packed.meta:
        rows["documents"] = packed.meta["documents"]
    return {"architecture": model.identity["config"], "labels": len(packed.meta.get("labels") or ()), **shapes, **rows}


def graph_settings(config: TrainConfig) -> Meta:
    """Return the settings that affect a graph."""
    # only whether there are class weights changes a graph
    return {**graph_params(config), "class_weights": config.class_weights is not None}


def machine(config: TrainConfig) -> Meta:
    """Return the compiler, and with `micro_batch: auto` a device's memory in whole GiB."""
    memory = known_memory(config) if config.micro_batch == "auto" else None
    return {**compiler(config), **({} if memory is None else {"memory_gib": memory >> 30})}


def needs(config: TrainConfig, known: Known) -> Iterator[str]:
    """Yield nothing; raise MissingDependency if engine xla lacks torch_xla."""
    if known.here is not None:
        check_torch_xla(config)
    yield from ()


def processes(config: TrainConfig) -> int:
    """Return the number of processes: those of train if they compile, else one that traces for all."""
    return ranks(config) if config.compile_cache else 1


@stage(
    kind="graphs",
    role="graphs",
    params=graph_settings,
    inputs=graph_inputs,
    accel=machine,
    environ=environ,
    ranks=processes,
    needs=needs,
    resolve="trnflow.tasks.training.automatic:resolved",
)
def precompile(
    config: TrainConfig, model: Source, packed: Input[PackedMeta], code: Source | None = None, *, out: Workdir
) -> GraphsMeta:
    """Trace the graphs and write `graphs.json`; its content is the metadata, with less of each graph.

    code: of `train.loss`.

    Keys of graphs.json:
        graphs: {name, length, hash, inputs, flops}, sorted by name and length.
        memory: Bytes on one device by use (`Memory`), or null.
        micro_batch: Rows in a replica's forward pass.
    """
    from trnflow.tasks.training.devices import check_device
    from trnflow.tasks.training.memory.device_fit import fit_to_device
    from trnflow.tasks.training.objective import learnt

    rank, packed = int(os.environ.get("RANK", "0")), learnt(config, packed)
    config = config.with_own_loss(code, packed=packed.meta, out=out, rank=rank)
    if config.by_neuronx_cc:
        from trnflow.tasks.training.graphs.neuron_precompile import compile_graphs as listed
    else:
        from trnflow.tasks.training.graphs.inventory import inventory as listed

    check_device(config)
    for text in cautions(config):
        out.warn(text)
    config, memory = fit_to_device(config, model, packed, out)
    graphs = listed(config, model, packed, out)
    # XLA's CPU client can't read a compile cache, so nothing is compiled for it
    keep_cache(config, model, packed, out)
    meta: GraphsMeta = {
        "engine": config.engine,
        "memory": memory.to_json() if memory else None,
        "micro_batch": config.replica_batch,
        "graphs": [{"name": graph["name"], "length": graph["length"], "hash": graph["hash"]} for graph in graphs],
    }
    if rank == 0:
        write_json(out.path / "graphs.json", {**meta, "graphs": graphs})
    return meta
