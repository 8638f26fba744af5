"""Exchange gradients, loss, norm and new weights between the ranks of engine native, around an update.

Gradients of replicated parameters are summed once an update in fp32, by all-reduce, with ZeRO-1 by reduce-scatter; with
FSDP in each pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from trnflow.tasks.training.layout.slices import ShardLayout, piece_copies
from trnflow.tasks.training.world import World


class SingleProcess:
    """What engine native calls around an update; in a single process nothing is sent."""

    def gradients(self, parameters: Sequence[Tensor], computed: Sequence[Tensor | None]) -> list[Tensor]:
        """Return each parameter's gradient in fp32, summed over all ranks' rows; of ZeRO-1 this rank's part.

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

    def share_weights(self, masters: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        """Copy the fp32 `masters` into the parameters, gathering what other ranks updated."""
        torch._foreach_copy_(list(parameters), list(masters))


class MeshExchange(SingleProcess):
    """`SingleProcess` over the ranks of a mesh.

    partial: Parameters whose gradients are also summed over "model" (`partial_gradients`).
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

    def gradients(self, parameters: Sequence[Tensor], computed: Sequence[Tensor | None]) -> list[Tensor]:
        from trnflow.tasks.training.native.collectives import all_reduce, reduce_scatter
        from trnflow.tasks.training.native.sharding import gradient_of

        own = [gradient_of(*both).float() for both in zip(parameters, computed, strict=True)]
        if self._world.mesh.model > 1:
            _replace(own, self._partial, all_reduce([own[i] for i in self._partial], self._models))
        # FSDP has summed its gradients in each pass: once an update would need whole fp32 gradients on each rank
        if self._world.mesh.data > 1:
            _replace(own, self._whole, all_reduce([own[i] for i in self._whole], self._group))
            _replace(own, self._split, reduce_scatter([own[i] for i in self._split], self._dimensions, self._group))
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

    def share_weights(self, masters: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        from trnflow.tasks.training.native.collectives import all_gather
        from trnflow.tasks.training.native.sharding import local_tensor

        places = [local_tensor(parameter) for parameter in parameters]
        split = set(self._split)
        same = [i for i in range(len(places)) if i not in split and places[i].data_ptr() != masters[i].data_ptr()]
        if same:
            torch._foreach_copy_([places[i] for i in same], [masters[i] for i in same])
        all_gather([masters[i] for i in self._split], [places[i] for i in self._split], self._dimensions, self._group)


def _replace(tensors: list[Tensor], which: Sequence[int], values: Sequence[Tensor]) -> None:
    for index, value in zip(which, values, strict=True):
        tensors[index] = value
