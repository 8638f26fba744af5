"""Make the engine that `train.engine` names, and connect the ranks. No other module imports both engines."""

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
from trnflow.tasks.training.shared_types import Built
from trnflow.tasks.training.world import ALONE, World

if TYPE_CHECKING:  # keeps the code that reads checkpoints out of precompile's key
    from trnflow.tasks.training.checkpoint.shards import Reader


def make_engine(
    config: TrainConfig, built: Built, registry: GraphRegistry, stored: Reader | None = None, world: World = ALONE
) -> Engine:
    """Return the engine that `config.engine` names, with the model on its devices.

    built: On "meta", steps are only traced. stored: A checkpoint of any mesh, or None.
    """
    check_heads(built.model.config.get_text_config().to_dict(), config.tensor_parallel_size)
    if config.engine == "native":
        from trnflow.tasks.training.native.engine import NativeEngine

        return NativeEngine(config, built, registry, stored, world)
    from trnflow.tasks.training.xla.engine import XlaEngine

    return XlaEngine(config, built, registry, stored, world)


@contextmanager
def join_ranks(config: TrainConfig, rows: str = "") -> Iterator[World]:
    """Join the ranks and yield this one's `World`.

    rows: Says on which rows this rank trains. Raises ModelError for another number of processes, MachineError for ranks
    that differ (`check_alike`), ProcessFailed for a rank that does not answer in time.
    """
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
        yield _join(config, rows)
        dist.destroy_process_group()  # not called after an error: it could wait for a rank that has died


def _join(config: TrainConfig, rows: str) -> World:
    if config.engine == "native":
        from trnflow.tasks.training.native.process_group import join_processes

        return join_processes(config, rows)
    from trnflow.tasks.training.xla.replicas import join_processes as join_replicas

    return join_replicas(config, rows)


@contextmanager
def _timeouts_explained(config: TrainConfig) -> Iterator[None]:
    """Turn gloo's timeout, known by its text, into ProcessFailed."""
    try:
        yield
    except RuntimeError as error:
        if "imed out" not in str(error) and "timeout" not in str(error).lower():
            raise
        raise ProcessFailed(
            f"waited {config.collective_timeout_seconds} s for the other ranks, and not all answered",
            "the stage's log says where they were; raise train.collective_timeout_seconds if one was only slow",
        ) from error
