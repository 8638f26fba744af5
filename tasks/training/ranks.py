"""The processes that train together: one a device, which meet as one group over a mesh (data, model).

Rank `d * model + m` stands at (d, m). What a rank asks of the others here goes over gloo and the host, so it waits for no
device; tensors on a GPU go over NCCL. One process alone is a `World` as well, for which nothing below costs anything.
Whoever waits for a rank that doesn't come fails after `collective_timeout_seconds`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tasks.errors import ModelError, ProcessFailed
from tasks.training.config import TrainConfig, ranks
from tasks.training.plan import Mesh

T = TypeVar("T")

# who carries the tensors of a device; TorchNeuron's would stand here, once somebody has run it
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


@dataclass(frozen=True)
class World:
    """rank: this process's number; mesh: how many devices along each axis; groups: DeviceMesh (of engine xla the hosts' group),
    or None for one process; host: the group through which hosts speak, where it is not the default one."""

    rank: int = 0
    mesh: Mesh = field(default=Mesh(1, 1))
    groups: Any = None
    host: Any = None

    @property
    def data(self) -> int:
        """Which share of each batch is this rank's."""
        return self.rank // self.mesh.model

    @property
    def model(self) -> int:
        """Which part of each split layer is this rank's."""
        return self.rank % self.mesh.model

    def share(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        if self.groups is None:
            return value
        import torch.distributed as dist

        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.host)
        return box[0]

    def agree(self, value: bool) -> bool:
        """`share` of a bool, made cheap enough for every step."""
        if self.groups is None:
            return value
        import torch
        import torch.distributed as dist

        flag = torch.tensor([value], dtype=torch.uint8)
        dist.broadcast(flag, src=0, group=self.host)
        return bool(flag)

    def first(self, function: Callable[[], T]) -> T:
        """What `function` returns on rank 0, where alone it is called; no rank goes on before."""
        return self.share(function() if self.rank == 0 else None)  # type: ignore[return-value]

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value by rank, on rank 0; None on the others."""
        if self.groups is None:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * (self.mesh.data * self.mesh.model)
        dist.gather_object(value, values if self.rank == 0 else None, group=self.host)
        return values if self.rank == 0 else None


ALONE = World()


@contextmanager
def joined(config: TrainConfig) -> Iterator[World]:
    """The world of this process, for as long as the context lasts. ProcessFailed when the others don't come in time."""
    if ranks(config) == 1:
        yield ALONE
        return
    import torch.distributed as dist

    if os.environ.get("WORLD_SIZE") != str(config.devices):
        raise ModelError(
            f"train.devices is {config.devices}, and {os.environ.get('WORLD_SIZE', 'no')} ranks were started",
            "let `trnflow run` start them, one for each device",
        )
    with _timeouts_told(config):
        yield _join(config)
        dist.destroy_process_group()  # not after an error: it may wait for a rank that is gone


def _join(config: TrainConfig) -> World:
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    rank, mesh = int(os.environ["RANK"]), Mesh(config.data_parallel, config.tensor_parallel_size)
    if config.engine == "xla":
        from tasks.training.replicas import meet

        host = meet(config)
        return World(rank, mesh, host, host)
    if config.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        BACKENDS[config.device],
        init_method=f"file://{os.environ['TRNFLOW_RENDEZVOUS']}",
        rank=rank,
        world_size=config.devices,
        timeout=timedelta(seconds=config.collective_timeout_seconds),
    )
    return World(rank, mesh, init_device_mesh(config.device, tuple(mesh), mesh_dim_names=("data", "model")))


@contextmanager
def _timeouts_told(config: TrainConfig) -> Iterator[None]:
    """gloo says that a rank did not come in the text of a RuntimeError alone."""
    try:
        yield
    except RuntimeError as error:
        if "imed out" not in str(error) and "timeout" not in str(error).lower():
            raise
        raise ProcessFailed(
            f"waited {config.collective_timeout_seconds} s for the other ranks, and not all came",
            "see where they were in the stage's log; raise train.collective_timeout_seconds if one was only slow",
        ) from error


def replica_seed(seed: int, replica: int) -> int:
    """Of dropout. Replicas hold other rows and draw otherwise; the ranks of one hold the same activations and draw alike. The
    CPU's generator takes 32 bits: the stride keeps replicas apart in them for as many steps as can be."""
    return seed + replica * 0x9E3779B1
