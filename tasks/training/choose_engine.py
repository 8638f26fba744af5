"""Make the engine that `train.engine` names, and connect the processes that train together.

An engine holds the model on its devices and computes the training steps: native is eager PyTorch, xla runs
torch_xla's compiled graphs. No other module imports both engines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trnflow.tasks.errors import ModelError, ProcessFailed
from trnflow.tasks.training.config import TrainConfig, ranks
from trnflow.tasks.training.engine import Engine
from trnflow.tasks.training.graph_registry import GraphRegistry
from trnflow.tasks.training.partition_specs import check_heads
from trnflow.tasks.training.ranks import ALONE, World
from trnflow.tasks.training.shared_types import Built

if TYPE_CHECKING:  # keeps the code that reads checkpoints out of precompile's key
    from trnflow.tasks.training.checkpoint.shards import Reader


def make_engine(
    config: TrainConfig, built: Built, registry: GraphRegistry, stored: Reader | None = None, world: World = ALONE
) -> Engine:
    """Return the engine that `config.engine` names, with the model placed on its devices. An engine holds the model and
    computes the training steps: native by PyTorch, xla by torch_xla's compiled graphs.

    Args:
        built: the model, on the CPU or on the "meta" device (without values).
        registry: records each graph that the engine traces, and checks it against the list of graphs that the stage
            precompile made.
        stored: reads the checkpoint to resume from, which may have been written on another mesh (number of replicas
            and of tensor parallel devices); None: start with the values in `built`.
        world: this process's number, and how it reaches the other processes that train.

    With a model on the "meta" device the engine only traces: a step registers its graph and runs nothing. Raise
    ModelError when the number of tensor parallel devices does not divide the model's number of heads."""
    check_heads(built.model.config.get_text_config().to_dict(), config.tensor_parallel_size)
    if config.engine == "native":
        from trnflow.tasks.training.native.engine import NativeEngine

        return NativeEngine(config, built, registry, stored, world)
    from trnflow.tasks.training.xla.engine import XlaEngine

    return XlaEngine(config, built, registry, stored, world)


@contextmanager
def join_ranks(config: TrainConfig) -> Iterator[World]:
    """Join the group of the processes that train together, and yield this process's `World`: its number, and methods
    that exchange small values with the other processes. Leave the group at the end of the context.

    A rank is one of these processes. If `config` asks for one process only, no group is made, and the `World` of a
    single process is yielded. Raise ModelError when another number of processes was started than `config`
    asks for, and ProcessFailed when a rank does not join, or later does not answer, within
    `train.collective_timeout_seconds`."""
    if ranks(config) == 1:
        yield ALONE
        return
    import torch.distributed as dist

    if os.environ.get("WORLD_SIZE") != str(config.devices):
        raise ModelError(
            f"train.devices is {config.devices}, and {os.environ.get('WORLD_SIZE', 'no')} ranks were started",
            "let `trnflow run` start them, one for each device",
        )
    with _timeouts_explained(config):
        yield _join(config)
        dist.destroy_process_group()  # not called after an error: it could wait for a rank that has died


def _join(config: TrainConfig) -> World:
    if config.engine == "native":
        from trnflow.tasks.training.native.process_group import join_processes

        return join_processes(config)
    from trnflow.tasks.training.xla.replicas import join_processes as join_replicas

    return join_replicas(config)


@contextmanager
def _timeouts_explained(config: TrainConfig) -> Iterator[None]:
    """Context that turns a timeout of gloo into ProcessFailed. A timeout is recognised by the text of gloo's
    RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        if "imed out" not in str(error) and "timeout" not in str(error).lower():
            raise
        raise ProcessFailed(
            f"waited {config.collective_timeout_seconds} s for the other ranks, and not all answered",
            "the stage's log says where they were; raise train.collective_timeout_seconds if one was only slow",
        ) from error
