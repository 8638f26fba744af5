"""List every graph that training will need, before it starts: name, length, hash, inputs and FLOPs; and what it will hold.

It traces the real steps on the real shapes and layout without data or weights, so it is keyed by what reaches the graph
alone: never by weights, data or the learning rate. On CPU nothing is compiled: XLA's CPU client cannot read a compile
cache back, so what counts is the hash. Costs: importing torch_xla and one trace a graph; a pass on "meta" for the memory.
Fails with ModelError where the layout does not fit the model, or training the device, and MissingDependency where device
neuron lacks its compiler.
"""

from __future__ import annotations

from tasks.artifact import Artifact, Input, Meta, Source
from tasks.config import graph_params
from tasks.stage import Keyed, Workdir, stage, write_json
from tasks.training.compile_cache import keep_cache
from tasks.training.config import TrainConfig, compiler, environ
from tasks.training.devices import known_memory

SCHEMA = 1

SHAPES = ("task", "lengths", "vocab_size", "pad_id", "bos_id", "eos_id")


def graph_inputs(config: TrainConfig, inputs: Keyed) -> Meta:
    """What reaches a graph: the architecture, the lengths, the number of labels, the special ids."""
    model, packed = inputs["model"], inputs["packed"]
    assert isinstance(model, Source) and isinstance(packed, Artifact)
    shapes = {name: packed.meta.get(name) for name in SHAPES}
    return {"architecture": model.identity["config"], "labels": len(packed.meta.get("labels") or ()), **shapes}


def graph_settings(config: TrainConfig) -> Meta:
    """Of classes' weights a graph knows only that there are some."""
    return {**graph_params(config), "class_weights": config.class_weights is not None}


def machine(config: TrainConfig) -> Meta:
    """The compiler; for micro_batch auto, and only then, how much memory a device has, in whole GiB."""
    memory = known_memory(config) if config.micro_batch == "auto" else None
    return {**compiler(config), **({} if memory is None else {"memory_gib": memory >> 30})}


@stage(kind="graphs", process=True, params=graph_settings, inputs=graph_inputs, accel=machine, environ=environ)
def precompile(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """Write `graphs.json`: {"engine", "graphs": [{name, length, hash, inputs, flops}], "memory", "micro_batch"}, graphs sorted by
    name and length; memory: bytes a device at the peak, in parts, or null where the model can't be traced; micro_batch: what
    `auto` is.

    On device neuron they are compiled as well, by `neuron_parallel_compile`, into `neuron-cache/`; that was never run here. With
    `train.compile_cache` torch.compile's cache stands beside them."""
    from tasks.training.devices import check_device
    from tasks.training.estimates import settle

    if config.device == "neuron":
        from tasks.training.neuron import compile_graphs as listed
    else:
        from tasks.training.inventory import inventory as listed

    check_device(config)
    config, memory = settle(config, model, packed, out)
    graphs = listed(config, model, packed, out)
    keep_cache(config, model, packed, out)
    found = {
        "engine": config.engine,
        "memory": memory.to_json() if memory else None,
        "micro_batch": config.replica_batch,
    }
    write_json(out.path / "graphs.json", {**found, "graphs": graphs})
    brief = [{name: graph[name] for name in ("name", "length", "hash")} for graph in graphs]
    return {**found, "graphs": brief}
