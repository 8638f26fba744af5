"""`World`: the processes (ranks) that train together, and the small messages that they exchange on the host.

The mesh (data, model) is the grid of devices that train together: data is the number of replicas (copies of the model),
model the number of devices of one replica. Rank `d * model + m` is at position (d, m). The messages go over gloo and do
not wait for a device. A rank fails when it waits longer than `train.collective_timeout_seconds` for another rank. A
single process is a `World` too, which sends no messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trnflow.tasks.training.partition_specs import Mesh

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """One process's view of all processes (ranks) that train together: this process's number, the mesh of devices, and
    methods that exchange small values between the ranks. Every rank must make the same calls of these methods, in the
    same order."""

    rank: int = 0
    """This process's number."""

    mesh: Mesh = field(default=Mesh(1, 1))
    """The number of devices along each axis: data (replicas) and model (tensor parallel devices of one replica)."""

    groups: Any = None
    """torch's DeviceMesh (engine native), the gloo process group of all ranks (engine xla), or None for a single
    process."""

    host: Any = None
    """The gloo process group that carries the messages; None stands for torch's default group."""

    @property
    def data(self) -> int:
        """This rank's index along the mesh axis "data": which share of each batch this process computes."""
        return self.rank // self.mesh.model

    @property
    def model(self) -> int:
        """This rank's index along the mesh axis "model": which part of each split layer this process holds."""
        return self.rank % self.mesh.model

    def broadcast(self, value: T) -> T:
        """Return the `value` of rank 0 (the first of the processes that train together) on every rank. The value is
        sent pickled."""
        if self.groups is None:
            return value
        import torch.distributed as dist

        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.host)
        return values[0]

    def broadcast_flag(self, value: bool) -> bool:
        """Return the `value` of rank 0 (the first process), a bool, on every rank. This is so much cheaper than
        `broadcast` that it can be called in every step."""
        if self.groups is None:
            return value
        import torch
        import torch.distributed as dist

        flag = torch.tensor([value], dtype=torch.uint8)
        dist.broadcast(flag, src=0, group=self.host)
        return bool(flag)

    def on_first(self, function: Callable[[], T]) -> T:
        """Call `function` in rank 0 (the first process) alone and return its value on every rank. The other ranks wait
        for the value."""
        return self.broadcast(function() if self.rank == 0 else None)  # type: ignore[return-value]

    def gather(self, value: T) -> list[T] | None:
        """Return the `value` of every rank (process that trains), in order of ranks, on rank 0; None on the others. The
        values are sent pickled."""
        if self.groups is None:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * (self.mesh.data * self.mesh.model)
        dist.gather_object(value, values if self.rank == 0 else None, group=self.host)
        return values if self.rank == 0 else None


ALONE = World()
"""The world of a single process."""


def replica_seed(seed: int, replica: int) -> int:
    """Return the dropout seed of a data parallel replica (copy of the model). Each replica has another seed; all ranks
    (processes) of one replica have the same seed.

    seed: the step's seed; replica: the replica's number. The CPU's generator takes 32 bits; the stride between replicas
    is chosen so that their seeds stay different in 32 bits for as many steps as possible."""
    return seed + replica * 0x9E3779B1
