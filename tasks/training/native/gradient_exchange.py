"""Exchange gradients, loss and norm between the ranks of engine native, around an update.

Gradients of replicated parameters are summed once an update, in fp32. Those of parameters that FSDP2 has split are
summed by it: with ZeRO-1 in an update's last pass, with `train.fsdp` in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trnflow.tasks.training.layout.slices import ShardLayout, piece_copies
from trnflow.tasks.training.world import World


class SingleProcess:
    """What engine native calls around an update; in a single process nothing is sent."""

    def gradients(self, parameters: Sequence[Tensor], computed: Sequence[Tensor | None]) -> list[Tensor]:
        """Return this rank's part of each parameter's gradient in fp32, summed over all ranks' rows.

        computed: None where the backward pass gave none.
        """
        return [
            torch.zeros_like(parameter, dtype=torch.float32) if gradient is None else gradient.float()
            for parameter, gradient in zip(parameters, computed, strict=True)
        ]

    def totals(self, loss: Tensor, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return (numbers of all rows, norm of all gradients), equal on every rank. loss: [n], the loss first."""
        return loss, torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))))

    def scores(self, scores: Tensor) -> Tensor:
        """Return an evaluation's numbers, summed over all ranks."""
        return scores

    def begin_pass(self, *, last: bool) -> None:
        """Prepare for a pass; `last` of the update."""

    def discard_gathered(self) -> None:
        """Let the next pass gather the weights again."""


class MeshExchange(SingleProcess):
    """`SingleProcess` over the ranks of a mesh.

    partial: Parameters whose gradients are also summed over "model" (`partial_gradients`). sharded: The model if FSDP2
    has split it, else None.
    """

    def __init__(self, layout: ShardLayout, world: World, partial: set[str], sharded: Any, *, zero1: bool) -> None:
        self._world, self._sharded, self._zero1 = world, sharded, zero1
        self._group = world.groups["data"].get_group()
        self._models = world.groups["model"].get_group()
        names = list(layout.states)
        self._partial = [i for i, name in enumerate(names) if name in partial]
        self._copies = [piece_copies(layout.states[name], layout.mesh) for name in names]
        self._once: Tensor | None = None
        self._whole = [i for i, n in enumerate(names) if "data" not in layout.states[n]]

    def gradients(self, parameters: Sequence[Tensor], computed: Sequence[Tensor | None]) -> list[Tensor]:
        from trnflow.tasks.training.native.collectives import all_reduce
        from trnflow.tasks.training.native.sharding import gradient_of

        own = [gradient_of(*both).float() for both in zip(parameters, computed, strict=True)]
        if self._world.mesh.model > 1:
            _replace(own, self._partial, all_reduce([own[i] for i in self._partial], self._models))
        if self._world.mesh.data > 1:
            _replace(own, self._whole, all_reduce([own[i] for i in self._whole], self._group))
        return own

    def totals(self, loss: Tensor, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        # each element counts once: the norms of copies are divided by their number
        squares = torch.stack(torch._foreach_norm(list(gradients))).square()
        if self._once is None:  # copied once, because a copy may wait for the device
            self._once = torch.tensor(self._copies, dtype=squares.dtype).reciprocal().to(squares.device)
        total = torch.cat([loss / self._world.mesh.model, (squares * self._once).sum()[None]])
        dist.all_reduce(total)
        return total[:-1], total[-1].sqrt()

    def scores(self, scores: Tensor) -> Tensor:
        dist.all_reduce(scores, group=self._group)
        return scores

    def begin_pass(self, *, last: bool) -> None:
        # before the last pass FSDP adds up whole gradients, in fp32. Not with `train.fsdp`, which is there to avoid them
        if self._zero1 and self._sharded is not None:
            self._sharded.set_requires_gradient_sync(last)
            self._sharded.set_reshard_after_backward(last)

    def discard_gathered(self) -> None:
        from torch.distributed.fsdp import FSDPModule

        # after an evaluation FSDP still holds some: no backward pass has freed them
        for module in [] if self._sharded is None else self._sharded.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _replace(tensors: list[Tensor], which: Sequence[int], values: Sequence[Tensor]) -> None:
    for index, value in zip(which, values, strict=True):
        tensors[index] = value
