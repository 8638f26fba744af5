"""What the ranks of engine native tell each other around an update: gradients, totals and new weights.

One process alone (`Alone`) tells nothing. `Together`, each rank comes with gradients of its own rows: those of whole
parameters are summed, with ZeRO-1 summed and split, and FSDP has done its own by then. Once an update, in fp32, however many
passes were accumulated: until the last of them FSDP holds whole gradients. The norm is taken tensor by tensor, each
counted once however many ranks hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tasks.training.layout import Layout, copies
from tasks.training.ranks import World

if TYPE_CHECKING:
    from torch import Tensor


class Exchange(Protocol):
    def gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Of each parameter, for all rows of all ranks, in fp32, laid out as the optimizer's state."""

    def totals(self, loss: Tensor, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(the loss, the norm of all gradients), the same on every rank; scalars."""

    def scores(self, scores: Tensor) -> Tensor:
        """Summed over the rows of all ranks."""

    def spread(self, masters: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        """Bring the updated weights to the parameters that compute."""

    def passes(self, model: object, *, last: bool) -> None:
        """Before each pass; last: of this update."""


class Alone:
    def gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        import torch

        return [torch.zeros_like(p).float() if p.grad is None else p.grad.float() for p in parameters]

    def totals(self, loss: Tensor, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        import torch

        return loss, torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))))

    def scores(self, scores: Tensor) -> Tensor:
        return scores

    def spread(self, masters: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        import torch

        torch._foreach_copy_(list(parameters), list(masters))

    def passes(self, model: object, *, last: bool) -> None:
        pass


class Together:
    """partial: the parameters whose gradients are summed over "model" as well."""

    def __init__(self, layout: Layout, world: World, partial: set[str]) -> None:
        self._world = world
        self._group = world.groups["data"].get_group()
        self._models = world.groups["model"].get_group()
        names = list(layout.states)
        self._partial = [i for i, name in enumerate(names) if name in partial]
        self._copies = [copies(layout.states[name], layout.mesh) for name in names]
        self._once: Tensor | None = None
        # how each gradient comes from the parameter's layout to that of the state
        self._split = [i for i, n in enumerate(names) if layout.states[n] != layout.specs[n]]
        self._whole = [i for i, n in enumerate(names) if "data" not in layout.states[n]]
        self._dimensions = [layout.states[names[i]].index("data") for i in self._split]

    def gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        from tasks.training.collectives import scattered, summed
        from tasks.training.sharding import gradient_of

        found = [gradient_of(parameter).float() for parameter in parameters]
        if self._world.mesh.model > 1:
            _put(found, self._partial, summed([found[i] for i in self._partial], self._models))
        if self._world.mesh.data > 1:
            _put(found, self._whole, summed([found[i] for i in self._whole], self._group))
            _put(found, self._split, scattered([found[i] for i in self._split], self._dimensions, self._group))
        return found

    def totals(self, loss: Tensor, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        import torch
        import torch.distributed as dist

        squares = torch.stack(torch._foreach_norm(list(gradients))).square()
        if self._once is None:  # sent to the device a single time: a copy may wait for it
            self._once = torch.tensor(self._copies, dtype=squares.dtype).reciprocal().to(squares.device)
        total = torch.stack([loss / self._world.mesh.model, (squares * self._once).sum()])
        dist.all_reduce(total)
        return total[0], total[1].sqrt()

    def scores(self, scores: Tensor) -> Tensor:
        import torch.distributed as dist

        dist.all_reduce(scores, group=self._group)
        return scores

    def spread(self, masters: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        import torch

        from tasks.training.collectives import collected
        from tasks.training.sharding import local

        places = [local(parameter) for parameter in parameters]
        split = set(self._split)
        same = [i for i in range(len(places)) if i not in split and places[i].data_ptr() != masters[i].data_ptr()]
        if same:
            torch._foreach_copy_([places[i] for i in same], [masters[i] for i in same])
        collected([masters[i] for i in self._split], [places[i] for i in self._split], self._dimensions, self._group)

    def passes(self, model: object, *, last: bool) -> None:
        from torch.distributed.fsdp import FSDPModule

        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)


def _put(found: list[Tensor], which: Sequence[int], values: Sequence[Tensor]) -> None:
    for index, value in zip(which, values, strict=True):
        found[index] = value
