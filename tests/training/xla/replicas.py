"""Engine xla as several replicas, on XLA's CPU client: the processes that they would be stand in one, an engine for each device.

Each engine is called with its own device as XLA's default one. A call enqueues and does not wait, so replicas are called one
after the other and meet in their collectives. They must run one executable, or they miss each other: the first compiles it,
and the others find it by their graph's hash. That a call does not wait takes buffers that are not donated.
"""

from __future__ import annotations

import gc
import os
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.training.run_stage import run_stage
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.train import environ as train_environ
from trnflow.tasks.training.batches.sampler import Batch, Split
from trnflow.tasks.training.checkpoint import shards
from trnflow.tasks.training.choose_engine import join_ranks
from trnflow.tasks.training.fit import make_schedule
from trnflow.tasks.training.graph_registry import GraphRegistry
from trnflow.tasks.training.optim.optimizer import Scalars, scalars
from trnflow.tasks.training.partition_specs import Mesh
from trnflow.tasks.training.world import World

EXPECTED = ("all-reduce", "reduce-scatter", "all-gather")


class ReplicasConfig(StageConfig):
    """configs: of device neuron, as recipes have them; half: before this step they are saved, and go on as new engines; spoilt:
    this step is tried with gradients that are not finite, and then made as it should be."""

    configs: tuple[TrainConfig, ...]
    devices: int
    half: int | None = None
    spoilt: int | None = None


def cpu_environ(config: ReplicasConfig) -> dict[str, str]:
    variables = train_environ(TrainConfig(devices=config.devices, global_batch=config.devices))
    return {**variables, "XLA_ENABLE_PARAM_ALIASING": "0"}


def per_device(**fields: Any) -> TrainConfig:
    return TrainConfig(**{"device": "neuron", "xla_processes": "per_device", "log_every": 1, **fields})


def replicated(config: ReplicasConfig, folder: Path, **inputs: Any) -> list[Meta]:
    """See `in_one_process`; "folder" of each is where its checkpoint lies."""
    found = run_stage(in_one_process, config, folder, **inputs)
    return [
        {**run, "folder": found.artifact.path / str(number)} for number, run in enumerate(found.artifact.meta["runs"])
    ]


@stage(kind="checkpoint", environ=lambda _: train_environ(TrainConfig()), ranks=lambda config: config.devices)
def joining(config: ReplicasConfig, out: Workdir) -> Meta:
    """A process for each replica after all, which the leader of ranks starts; each says which world it finds."""
    with join_ranks(config.configs[0].model_copy(update={"device": "cpu"})) as world:
        return {"world": world.mesh.data}


@stage(kind="checkpoint", environ=lambda _: train_environ(TrainConfig()))
def met_alone(config: TrainConfig, out: Workdir) -> Meta:
    """What hosts tell each other beside XLA's group, of a single one."""
    from trnflow.tasks.launch.ranks import environ
    from trnflow.tasks.training.xla.replicas import join_processes

    os.environ.update(environ(0, 1, out.scratch, 29_000 + os.getpid() % 1000))
    host = join_processes(config)
    world = World(0, Mesh(1, 1), host, host)
    told = [world.broadcast("a"), world.broadcast_flag(True), world.on_first(lambda: "b"), world.gather("c")]
    return {"told": told, "groups": [_backend(None), _backend(host)]}


@stage(kind="checkpoint", environ=cpu_environ)
def in_one_process(config: ReplicasConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """{"runs": [{"steps": [[loss, norm, finite] of each update], "eval_loss": of the validation split, "compiled": graphs,
    "hashes": of each replica {graph: hash}, "collectives": {graph: lines of its HLO}, "held": bytes of moments of each}]}."""
    import torch_xla.core.xla_model as xm

    gc.freeze()  # each graph that an engine meets is preceded by a collection: not of all libraries
    xm.set_replication(xm.xla_device(), xm.get_xla_supported_devices())
    return {"runs": [_train(one, config, model, packed, out, number) for number, one in enumerate(config.configs)]}


def _train(one: TrainConfig, how: ReplicasConfig, model: Source, packed: Input, out: Workdir, number: int) -> Meta:
    import torch_xla.debug.metrics as metrics

    before = metrics.counter_value("UncachedCompile") or 0
    config = one.model_copy(update={"device": "cpu"})  # which a recipe may not say: there a process is a world of one
    replicas = All(config, model, packed, None)
    split = Split(packed, "train")
    schedule = make_schedule(config, packed.meta, split)
    steps: list[list[float]] = []
    for step in range(schedule.steps_per_epoch):
        if step == how.half:
            middle = out.scratch / f"half-{number}"
            shards.write(middle, replicas.slices(), {})
            replicas = All(config, model, packed, shards.Reader(middle))
        batch = split.read(schedule.address(step))
        at = scalars(config, step, schedule.steps_per_epoch, batch.supervised)
        if step == how.spoilt:
            assert replicas.train(batch, at._replace(scale=float("inf")), seed=step)[2] == 0
        steps.append(replicas.train(batch, at, seed=step))
    shards.write(out.path / str(number), replicas.slices(), {})
    evaluated = replicas.evaluate(Split(packed, "validation"))
    compiled = metrics.counter_value("UncachedCompile") - before
    return {"steps": steps, "eval_loss": evaluated, "compiled": compiled, **replicas.traced}


def _backend(group: Any) -> str:
    import torch.distributed as dist

    return str(dist.get_backend(group))


class All:
    def __init__(self, config: TrainConfig, model: Source, packed: Input, stored: shards.Reader | None) -> None:
        from trnflow.tasks.training.model.adapters import prepared
        from trnflow.tasks.training.model.build import build

        self.config, self.engines, self.registries = config, [], []
        for rank in range(config.devices):
            self._turn(rank)
            built = prepared(config, build(model, packed, seed=config.seed, weights=True), packed.meta)
            self.registries.append(
                GraphRegistry(allow_unlisted=True)
            )  # XLA counts the compiles of all replicas together
            world = World(rank, Mesh(config.devices, 1), "met")
            self.engines.append(self._kind(config, built, self.registries[-1], stored, world))

    def train(self, batch: Batch, at: Scalars, seed: int) -> list[float]:
        return self._together(lambda engine: engine.train(batch, at, seed))

    def evaluate(self, split: Split) -> float:
        batches = [split.read(address) for address in split.in_order(self.config.micro_rows)]
        found = [self._together(lambda engine, batch=batch: engine.evaluate(batch)) for batch in batches]
        return sum(loss for loss, _ in found) / sum(batch.supervised for batch in batches)

    def slices(self) -> list[Any]:
        return [part for engine in self.engines for part in engine.slices(state=True)]

    @property
    def traced(self) -> Meta:
        hashes = [{name: graph["hash"] for (name, _), graph in registry.graphs.items()} for registry in self.registries]
        moments = [sum(t.nbytes for kept in e._state.values() for t in kept.values()) for e in self.engines]
        return {"hashes": hashes, "collectives": self.engines[0].collectives, "held": moments}

    def _together(self, call: Any) -> list[float]:
        handles = []
        for rank, engine in enumerate(self.engines):
            self._turn(rank)
            handles.append(call(engine))
        (said, *others) = [engine.fetch([handle])[0] for engine, handle in zip(self.engines, handles, strict=True)]
        assert all(str(other) == str(said) for other in others), (said, others)
        return said

    def _turn(self, rank: int) -> None:
        import torch_xla

        torch_xla._XLAC._xla_set_default_device(f"xla:{rank}")

    @cached_property
    def _kind(self) -> Any:
        import torch_xla

        from trnflow.tasks.training.xla.engine import XlaEngine

        class Listed(XlaEngine):
            collectives: dict[str, list[str]]

            def _run(self, name: str, batch: Any, writes: Any, result: Any = None) -> Any:
                seen = self.__dict__.setdefault("collectives", {})
                if name not in seen:
                    values = [value for _, value, _ in writes] + ([] if result is None else [result])
                    text = torch_xla._XLAC._get_xla_tensors_hlo(values)
                    lines = [line.strip() for line in text.splitlines()]
                    seen[name] = [line for line in lines if any(f" {kind}(" in line for kind in EXPECTED)]
                return super()._run(name, batch, writes, result)

        return Listed
