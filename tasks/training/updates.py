"""What engine native does to its weights in an update: the fused AdamW, or Adafactor over the mesh.

Each holds the optimizer's state of this rank and gives it back by name, for checkpoints. An update divides gradients by `ratio`
and changes nothing where `good` is false. The weights are fp32 (masters, or the parameters themselves), or with `draws` bf16:
then they are made fp32 a few at a time, updated, and rounded back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tasks.training.adafactor import applied, direction, measured, moments
from tasks.training.layout import Layout, copies, piece
from tasks.training.names import FIRST, ROW, SECOND
from tasks.training.optim import Scalars, decays, state_shapes
from tasks.training.plan import Shape, Spec
from tasks.training.ranks import World
from tasks.training.rounding import CHUNKS, Draws, put, rounded, rows

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tasks.training.checkpoint import Reader


class Kept(NamedTuple):
    """A tensor of the state. name: with its prefix; spec: which part of the whole it is."""

    name: str
    whole: Shape
    spec: Spec
    value: Tensor


class Update(Protocol):
    def state(self) -> Iterator[Kept]: ...

    def apply(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        ratio: Tensor,
        good: Tensor,
        at: Scalars,
        draws: Draws | None = None,
    ) -> None: ...


def make_update(optimizer: str, layout: Layout, world: World, device: torch.device, stored: Reader | None) -> Update:
    """stored: where its state comes from; from zeros without."""
    return (FusedAdamW if optimizer == "adamw" else Adafactor)(layout, world, device, stored)


class Rows(NamedTuple):
    """A part of a weight with what belongs to it. spec: of the whole part that this rank updates."""

    spec: Spec
    weight: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor


class FusedAdamW:
    """One pass over the parameters, in one kernel; over those in bf16 a chunk at a time."""

    def __init__(self, layout: Layout, world: World, device: torch.device, stored: Reader | None) -> None:
        import torch

        zero = torch.zeros(())
        self._layout, self._device = layout, device
        self._first, self._second = (
            [
                _part(stored.tensor(prefix + name) if stored else zero.expand(layout.shapes[name]), spec, world, device)
                for name, spec in layout.states.items()
            ]
            for prefix in (FIRST, SECOND)
        )

    def state(self) -> Iterator[Kept]:
        for prefix, tensors in ((FIRST, self._first), (SECOND, self._second)):
            for (name, spec), value in zip(self._layout.states.items(), tensors, strict=True):
                yield Kept(prefix + name, self._layout.shapes[name], spec, value)

    def apply(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        ratio: Tensor,
        good: Tensor,
        at: Scalars,
        draws: Draws | None = None,
    ) -> None:
        columns = (self._layout.states.values(), weights, gradients, self._first, self._second)
        sorts: dict[bool, list[Rows]] = {True: [], False: []}
        for one in map(Rows._make, zip(*columns, strict=True)):
            sorts[decays(tuple(one.weight.shape))].append(one)
        skip = (~good).float()
        for decayed, some in sorts.items():
            at_rest = at if decayed else at._replace(weight_decay=0.0)
            if draws is None:
                self._fused(some, [one.weight for one in some], ratio, skip, at_rest)
                continue
            for group in _groups(some, CHUNKS[self._device.type]):
                flat, wide = _widened(group)
                self._fused(group, wide, ratio, skip, at_rest)
                _narrow(group, flat, draws)

    def _fused(self, some: Sequence[Rows], wide: list[Tensor], ratio: Tensor, skip: Tensor, at: Scalars) -> None:
        """wide: the weights in fp32, which are changed."""
        import torch

        if not some:
            return
        step = torch.full((), at.t, dtype=torch.float32, device=self._device)  # filled there: a copy would wait
        torch._fused_adamw_(
            wide,
            [one.gradient for one in some],
            [one.first for one in some],
            [one.second for one in some],
            [],
            [step] * len(some),
            lr=at.lr,
            beta1=at.beta1,
            beta2=at.beta2,
            weight_decay=at.weight_decay,
            eps=at.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=ratio,
            found_inf=skip,
        )


@dataclass(frozen=True)
class Factored:
    """A parameter. state: whole, by prefix; share: 1 / the ranks that hold the same part."""

    name: str
    whole: Shape
    spec: Spec
    share: float
    state: dict[str, Tensor]

    @property
    def specs(self) -> list[Spec]:
        """Which part of the state belongs to this rank's part of the parameter."""
        return [self.spec[:-1], (*self.spec[:-2], self.spec[-1])] if len(self.spec) > 1 else [self.spec]


class Adafactor:
    """Its state, which is small, is whole on every rank; sums over a spread parameter go in one message for all of them."""

    def __init__(self, layout: Layout, world: World, device: torch.device, stored: Reader | None) -> None:
        self._world = world
        self._all = [
            Factored(name, layout.shapes[name], spec, 1 / copies(spec, layout.mesh), state)
            for name, spec in layout.states.items()
            for state in [_factors(name, layout.shapes[name], device, stored)]
        ]

    def state(self) -> Iterator[Kept]:
        for one in self._all:
            for prefix, value in one.state.items():
                yield Kept(prefix + one.name, tuple(value.shape), (None,) * value.dim(), value)

    def apply(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        ratio: Tensor,
        good: Tensor,
        at: Scalars,
        draws: Draws | None = None,
    ) -> None:
        import torch

        gradients = [gradient / ratio for gradient in gradients]
        sums = self._together(
            [
                self._placed(one, measured(weight.float(), gradient))
                for one, weight, gradient in zip(self._all, weights, gradients, strict=True)
            ]
        )
        moves = []
        for one, gradient, (*totals, _) in zip(self._all, gradients, sums, strict=True):
            for old, new in zip(
                one.state.values(), moments(list(one.state.values()), totals, one.whole, at), strict=True
            ):
                old.copy_(torch.where(good, new, old))
            moves.append(self._direction(one, gradient))
        lengths = self._together([[(m * m).sum() * one.share] for one, m in zip(self._all, moves, strict=True)])
        for one, weight, move, found, (length,) in zip(self._all, weights, moves, sums, lengths, strict=True):
            wide = weight.float()
            moved = applied(wide, move, found[-1], length, math.prod(one.whole), at)
            put(weight, torch.where(good, moved, wide), one.spec, draws)

    def _direction(self, one: Factored, gradient: Tensor) -> Tensor:
        parts = [piece(value, spec, self._world) for value, spec in zip(one.state.values(), one.specs, strict=True)]
        level = parts[0]  # not read of one dimension
        if ROW in one.state:
            level = piece(one.state[ROW].mean(-1, keepdim=True), (*one.spec[:-2], None), self._world)
        found: Tensor = direction(parts, level, gradient)
        return found

    def _placed(self, one: Factored, found: list[Tensor]) -> list[Tensor]:
        """This rank's sums, where they belong in those of the whole, so that all ranks' add up."""
        import torch

        if self._world.groups is None:
            return found
        *sums, size = found
        placed = [torch.zeros_like(value) for value in one.state.values()]
        for whole, spec, value in zip(placed, one.specs, sums, strict=True):
            piece(whole, spec, self._world).copy_(value * one.share)
        return [*placed, size * one.share]

    def _together(self, found: list[list[Tensor]]) -> list[list[Tensor]]:
        """Summed over all ranks."""
        if self._world.groups is None:
            return found
        from tasks.training.collectives import summed

        totals = iter(summed([value for values in found for value in values], None))
        return [[next(totals) for _ in values] for values in found]


def _groups(some: Iterable[Rows], size: int) -> Iterator[list[Rows]]:
    """Of the same sort of spec, about `size` numbers each: many small weights together, a large one in parts."""
    pending: dict[frozenset[str | None], list[Rows]] = {}
    for one in some:
        sort = frozenset(one.spec) - {None}
        for weight, *others in zip(*map(rows, one[1:]), strict=True):
            group = pending.setdefault(sort, [])
            group.append(Rows(one.spec, weight, *others))
            if sum(part.weight.numel() for part in group) >= size:
                yield pending.pop(sort)
    yield from pending.values()


def _widened(group: Sequence[Rows]) -> tuple[Tensor, list[Tensor]]:
    """The weights in fp32: in one tensor, and as views of it."""
    import torch

    flat = torch.cat([one.weight.reshape(-1) for one in group]).float()
    return flat, _parted(flat, group)


def _narrow(group: Sequence[Rows], flat: Tensor, draws: Draws) -> None:
    import torch

    found = rounded(flat, draws.bits(group[0].spec, flat.numel()))
    torch._foreach_copy_([one.weight for one in group], _parted(found, group))


def _parted(flat: Tensor, group: Sequence[Rows]) -> list[Tensor]:
    """As views, each weight's."""
    import torch

    parts = torch.split(flat, [one.weight.numel() for one in group])
    return [part.view(one.weight.shape) for part, one in zip(parts, group, strict=True)]


def _part(tensor: Tensor, spec: Spec, world: World, device: torch.device) -> Tensor:
    """This rank's part, in memory of its own, on the device."""
    return piece(tensor, spec, world).to(device, copy=True).contiguous()


def _factors(name: str, whole: Shape, device: torch.device, stored: Reader | None) -> dict[str, Tensor]:
    import torch

    return {
        prefix: (stored.tensor(prefix + name) if stored else torch.zeros(shape)).to(device)
        for prefix, shape in state_shapes("adafactor", whole).items()
    }
