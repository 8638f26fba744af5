"""Exchange gradients, loss, gradient norm and new weights between the ranks of engine native, before and after an
update.

Each rank (one of the processes that train together) has gradients of its own rows, added up over the passes of an
update. Once an update, the gradients of replicated parameters are summed over the ranks in fp32, by all-reduce, with
ZeRO-1 by reduce-scatter. With FSDP the gradients are already summed over the ranks in each pass: summing them once an
update would need whole gradients in fp32 on each rank. The norm is computed tensor by tensor, and counts each element
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trnflow.tasks.training.layout.slices import ShardLayout, piece_copies
from trnflow.tasks.training.world import World

if TYPE_CHECKING:
    from torch import Tensor


class SingleProcess:
    """Methods that engine native calls to sum gradients, losses and scores, and to share updated weights, around an
    update of the weights. This class is for a single process, which sends nothing. The subclass `MeshExchange` does the
    same work for several ranks (processes that train together)."""

    def gradients(self, parameters: Sequence[Tensor], found: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the gradient of each of `parameters`, summed over the rows of all ranks (processes that train
        together), in fp32. Where the optimizer's state is split over the ranks, only this rank's part is returned.

        found: the gradient of each of `parameters` for this rank's rows, None where the backward pass gave none."""
        import torch

        return [
            torch.zeros_like(parameter, dtype=torch.float32) if gradient is None else gradient.float()
            for parameter, gradient in zip(parameters, found, strict=True)
        ]

    def totals(self, loss: Tensor, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return (the loss of all rows of the update, the norm of all gradients together) as scalar tensors, equal on
        every rank (process that trains).

        loss: the loss of this rank's rows; gradients: what the method `gradients` returned."""
        import torch

        return loss, torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))))

    def scores(self, scores: Tensor) -> Tensor:
        """Return the evaluation's scores, a tensor [summed loss, number of correct targets] of the rows of this rank
        (process), summed over all ranks."""
        return scores

    def share_weights(self, masters: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        """Copy the updated fp32 weights into the parameters that the model computes with. Where each rank has updated
        only its part of a weight, the parts of all ranks are gathered.

        masters: this rank's fp32 weights; parameters: the parameters of the model, in the same order."""
        import torch

        torch._foreach_copy_(list(parameters), list(masters))


class MeshExchange(SingleProcess):
    """Sums gradients, losses and scores over the ranks (processes that train together), and shares updated weights
    between them. Every rank has such an object and makes the same calls. The methods override those of `SingleProcess`,
    which documents them.

    Args:
        layout: how parameters and optimizer state are split over the mesh of devices.
        world: this rank, and the process groups along the mesh axes "data" and "model".
        partial: names of the parameters whose gradients must also be summed over the axis "model"
            (`partial_gradients`).
    """

    def __init__(self, layout: ShardLayout, world: World, partial: set[str]) -> None:
        self._world = world
        self._group = world.groups["data"].get_group()
        self._models = world.groups["model"].get_group()
        names = list(layout.states)
        self._partial = [i for i, name in enumerate(names) if name in partial]
        self._copies = [piece_copies(layout.states[name], layout.mesh) for name in names]
        self._once: Tensor | None = None
        # the indices of gradients that are reduce-scattered over "data", and of those that stay whole
        self._split = [i for i, n in enumerate(names) if layout.states[n] != layout.specs[n]]
        self._whole = [i for i, n in enumerate(names) if "data" not in layout.states[n]]
        self._dimensions = [layout.states[names[i]].index("data") for i in self._split]

    def gradients(self, parameters: Sequence[Tensor], found: Sequence[Tensor | None]) -> list[Tensor]:
        from trnflow.tasks.training.native.collectives import all_reduce, reduce_scatter
        from trnflow.tasks.training.native.sharding import gradient_of

        own = [gradient_of(*both).float() for both in zip(parameters, found, strict=True)]
        if self._world.mesh.model > 1:
            _replace(own, self._partial, all_reduce([own[i] for i in self._partial], self._models))
        if self._world.mesh.data > 1:
            _replace(own, self._whole, all_reduce([own[i] for i in self._whole], self._group))
            _replace(own, self._split, reduce_scatter([own[i] for i in self._split], self._dimensions, self._group))
        return own

    def totals(self, loss: Tensor, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        import torch
        import torch.distributed as dist

        squares = torch.stack(torch._foreach_norm(list(gradients))).square()
        if self._once is None:  # copied once, because a copy may wait for the device
            self._once = torch.tensor(self._copies, dtype=squares.dtype).reciprocal().to(squares.device)
        total = torch.stack([loss / self._world.mesh.model, (squares * self._once).sum()])
        dist.all_reduce(total)
        return total[0], total[1].sqrt()

    def scores(self, scores: Tensor) -> Tensor:
        import torch.distributed as dist

        dist.all_reduce(scores, group=self._group)
        return scores

    def share_weights(self, masters: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        import torch

        from trnflow.tasks.training.native.collectives import all_gather
        from trnflow.tasks.training.native.sharding import local_tensor

        places = [local_tensor(parameter) for parameter in parameters]
        split = set(self._split)
        same = [i for i in range(len(places)) if i not in split and places[i].data_ptr() != masters[i].data_ptr()]
        if same:
            torch._foreach_copy_([places[i] for i in same], [masters[i] for i in same])
        all_gather([masters[i] for i in self._split], [places[i] for i in self._split], self._dimensions, self._group)


def _replace(found: list[Tensor], which: Sequence[int], values: Sequence[Tensor]) -> None:
    for index, value in zip(which, values, strict=True):
        found[index] = value
