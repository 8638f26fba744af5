"""`World`: the ranks that train together, and their small messages on the host.

Rank `d * model + m` is at (d, m) of the mesh. A rank raises when it waits longer than
`train.collective_timeout_seconds`. A single process sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from trnflow.tasks.training.partition_specs import Mesh

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """One rank's view of all. Every rank makes the same calls in the same order."""

    rank: int = 0
    """This process's number."""

    mesh: Mesh = field(default=Mesh(1, 1))
    """Devices along each axis: data (replicas) and model (of one replica)."""

    groups: Any = None
    """torch's DeviceMesh with "data", or of HSDP "copies" and "shards", and "model" (native); the gloo group of all ranks
    (xla), or None."""

    host: Any = None
    """The gloo group of the messages; None: torch's default."""

    @property
    def data(self) -> int:
        """This rank's index along "data": its share of each batch."""
        return self.rank // self.mesh.model

    @property
    def model(self) -> int:
        """This rank's index along "model": its part of each split layer."""
        return self.rank % self.mesh.model

    def part(self, axis: str) -> int:
        """Return which part this rank holds of what an axis splits."""
        return self.data % self.mesh.parts(axis) if axis == "data" else self.model

    def broadcast(self, value: T) -> T:
        """Return rank 0's value on every rank. It travels as JSON: of a tuple the ranks get a list."""
        if self.groups is None:
            return value
        import torch
        import torch.distributed as dist

        text = _as_json(value) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([len(text)])
        # over gloo, which waits for no device
        dist.broadcast(size, src=0, group=self.host)
        text = text if self.rank == 0 else text.new_empty(int(size))
        dist.broadcast(text, src=0, group=self.host)
        received: T = json.loads(text.numpy().tobytes())
        return received

    def broadcast_flag(self, value: bool) -> bool:
        """Return rank 0's bool on every rank; cheap enough for every step."""
        if self.groups is None:
            return value
        import torch
        import torch.distributed as dist

        flag = torch.tensor([value], dtype=torch.uint8)
        dist.broadcast(flag, src=0, group=self.host)
        return bool(flag)

    def on_first(self, function: Callable[[], T]) -> T:
        """Call `function` on rank 0 alone and return its value on every rank."""
        return self.broadcast(function() if self.rank == 0 else None)  # type: ignore[return-value]

    def gather(self, value: T) -> list[T] | None:
        """Return all ranks' values, in order, on rank 0, else None. They travel as JSON."""
        if self.groups is None:
            return [value]
        import torch
        import torch.distributed as dist

        text = _as_json(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.mesh.data * self.mesh.model)]
        dist.all_gather(sizes, torch.tensor([len(text)]), group=self.host)
        longest = int(torch.cat(sizes).max())
        text = torch.nn.functional.pad(text, (0, longest - len(text)), value=ord(" "))  # JSON may end in spaces
        texts = [torch.empty_like(text) for _ in sizes] if self.rank == 0 else None
        dist.gather(text, texts, group=self.host)
        return None if texts is None else [json.loads(text.numpy().tobytes()) for text in texts]


def _as_json(value: Any) -> Tensor:
    """Return a value's JSON, NaN and infinities included: uint8 [bytes]."""
    import torch

    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


ALONE = World()
"""The world of a single process."""


def replica_seed(seed: int, replica: int) -> int:
    """Return a replica's dropout seed."""
    # this stride keeps replicas apart in the CPU generator's 32 bits for as many steps as possible
    return seed + replica * 0x9E3779B1
