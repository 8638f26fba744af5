"""Stage `precompile`: list every graph that training will run, and estimate the memory that training will take. A
graph is a program that a device runs, such as a training step for one sequence length.

The stage traces the steps of training on their real shapes and device layout, but without data or weights, and writes
for each graph its name, length, hash, inputs and FLOPs. `train` then refuses a graph that is not in the list, unless
`train.allow_recompile` is set. Graphs are also compiled on device neuron, and with `train.compile_cache` for
torch.compile. For XLA on the CPU nothing is compiled, because XLA's CPU client cannot read a compile cache.

The stage's cache key contains only settings and inputs that affect a graph: never weights, data or the learning rate.
Costs: importing torch_xla, one trace for each graph, and one pass on "meta" tensors for the memory.

Raises:
    ModelError: the layout does not fit the model, or training does not fit into the device's memory.
    MissingDependency: the compiler of device neuron is not installed.
"""

from __future__ import annotations

from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.config import graph_params
from trnflow.tasks.stage import Keyed, Workdir, stage, write_json
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.devices import cautions, known_memory
from trnflow.tasks.training.environment import compiler, environ
from trnflow.tasks.training.graphs.compile_cache import keep_cache

SCHEMA = 1

SHAPES = ("task", "lengths", "vocab_size", "pad_id", "bos_id", "eos_id")


def graph_inputs(config: TrainConfig, inputs: Keyed) -> Meta:
    """Return the part of the cache key of `precompile` that describes the stage's inputs: only the facts about the
    model and the packed rows that affect a graph (a program that a device runs, such as a training step for one
    sequence length). They are the model's architecture, and the rows' task, lengths, vocabulary size, number of labels
    and special token ids."""
    model, packed = inputs["model"], inputs["packed"]
    assert isinstance(model, Source) and isinstance(packed, Artifact)
    shapes = {name: packed.meta.get(name) for name in SHAPES}
    return {"architecture": model.identity["config"], "labels": len(packed.meta.get("labels") or ()), **shapes}


def graph_settings(config: TrainConfig) -> Meta:
    """Return the settings that affect a graph (a program that a device runs, such as a training step for one sequence
    length), for the cache key of `precompile`. Of `class_weights` only one fact affects a graph: whether they are
    set."""
    return {**graph_params(config), "class_weights": config.class_weights is not None}


def machine(config: TrainConfig) -> Meta:
    """Return the part of the cache key of `precompile` that describes the machine: the compiler, and with `micro_batch:
    auto` also the memory of a device in whole GiB."""
    memory = known_memory(config) if config.micro_batch == "auto" else None
    return {**compiler(config), **({} if memory is None else {"memory_gib": memory >> 30})}


@stage(kind="graphs", params=graph_settings, inputs=graph_inputs, accel=machine, environ=environ)
def precompile(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """Trace the graphs of training (programs that a device runs, such as a step for one sequence length) and write
    `graphs.json`. Return its content as metadata, but of each graph the name, length and hash alone.

    Args:
        model: the model's source, of which only the architecture is used.
        packed: the artifact of `pack_chunks`, for whose sequence lengths the graphs are made.

    Keys of graphs.json:
        engine: the setting `train.engine`.
        graphs: a list of {name, length, hash, inputs, flops}, sorted by name and length. length: tokens a row; inputs:
            shape and dtype of each input; flops: floating-point operations of one execution.
        memory: the largest number of bytes that training takes on one device, by use (see `Memory`); null when the
            model cannot be traced.
        micro_batch: the rows in a forward pass of one replica (copy of the model); with `micro_batch: auto`, the number
            that fits the device's memory.

    On device neuron the graphs are also compiled, by `neuron_parallel_compile`, into `neuron-cache/` (written from
    AWS's documentation, never run). With `train.compile_cache` the cache of torch.compile is written too.
    """
    from trnflow.tasks.training.devices import check_device
    from trnflow.tasks.training.memory.device_fit import fit_to_device

    if config.device == "neuron":
        from trnflow.tasks.training.graphs.neuron_precompile import compile_graphs as listed
    else:
        from trnflow.tasks.training.graphs.inventory import inventory as listed

    check_device(config)
    for text in cautions(config):
        out.warn(text)
    config, memory = fit_to_device(config, model, packed, out)
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
