"""The optimizers of engine native: AdamW by PyTorch's fused kernel, and Adafactor over the mesh.

Each holds this rank's part of the state. Weights are fp32 (masters, or the parameters), or bf16 with stochastic
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from trnflow.tasks.training.device_kinds import KINDS
from trnflow.tasks.training.layout.slices import ShardLayout, piece, piece_copies, piece_shape, piece_slices
from trnflow.tasks.training.optim.adafactor import apply_update, squared_sums, update_direction, update_moments
from trnflow.tasks.training.optim.optimizer import Scalars, is_decayed, state_shapes
from trnflow.tasks.training.optim.rounding import RandomBits, round_stochastically, row_chunks, store
from trnflow.tasks.training.partition_specs import Shape, Spec
from trnflow.tasks.training.shared_types import FIRST_MOMENT, ROW, SECOND_MOMENT
from trnflow.tasks.training.world import World

if TYPE_CHECKING:
    from trnflow.tasks.training.checkpoint.shards import Reader


class StateTensor(NamedTuple):
    """A parameter or a tensor of the optimizer's state. whole: shape of the whole; value: this rank's part."""

    name: str
    whole: Shape
    spec: Spec
    value: Tensor


class WeightPart(NamedTuple):
    """This rank's part of a weight, with its gradient and AdamW's moments: all of one shape."""

    spec: Spec
    weight: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor


class FusedAdamW:
    """AdamW by PyTorch's fused kernel, in one pass over all fp32 weights.

    stored: A checkpoint with the state; without it zeros.
    """

    def __init__(self, layout: ShardLayout, world: World, device: torch.device, stored: Reader | None) -> None:
        self._layout, self._device = layout, device
        self._first, self._second = (
            [
                self._moment(prefix + name, layout.shapes[name], spec, world, stored)
                for name, spec in layout.states.items()
            ]
            for prefix in (FIRST_MOMENT, SECOND_MOMENT)
        )

    def _moment(self, name: str, whole: Shape, spec: Spec, world: World, stored: Reader | None) -> Tensor:
        if stored is None:
            return torch.zeros(piece_shape(whole, spec, world.mesh), device=self._device)
        return stored.part(name, piece_slices(whole, spec, world)).to(self._device)

    def state(self) -> Iterator[StateTensor]:
        """Yield this rank's part of each tensor of the state."""
        for prefix, tensors in ((FIRST_MOMENT, self._first), (SECOND_MOMENT, self._second)):
            for (name, spec), value in zip(self._layout.states.items(), tensors, strict=True):
                yield StateTensor(prefix + name, self._layout.shapes[name], spec, value)

    def apply(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        ratio: Tensor,
        good: Tensor,
        at: Scalars,
        draws: RandomBits | None = None,
    ) -> None:
        """Update `weights` and the state in place.

        Args:
            weights, gradients: This rank's parts; gradients in fp32.
            ratio: Scalar that divides the gradients; above 1 clips.
            good: Scalar bool; false changes nothing.
            draws: Rounds bf16 weights; None for fp32.
        """
        columns = (self._layout.states.values(), weights, gradients, self._first, self._second)
        parts, sorts = map(WeightPart._make, zip(*columns, strict=True)), dict[tuple[bool, float], list[WeightPart]]()
        for name, part in zip(self._layout.states, parts, strict=True):
            rate = self._layout.rates.get(name, 1.0)
            sorts.setdefault((is_decayed(tuple(part.weight.shape)), rate), []).append(part)
        skip = (~good).float()
        for (decayed, rate), some in sorted(sorts.items(), key=lambda sort: sort[0], reverse=True):
            at_rest = at._replace(lr=at.lr * rate, weight_decay=at.weight_decay if decayed else 0.0)
            if draws is None:
                self._fused(some, [part.weight for part in some], ratio, skip, at_rest)
                continue
            # bf16 weights are converted to fp32, updated and rounded back a few at a time, without a whole fp32 copy
            for group in _chunks(some, KINDS[self._device.type].chunk):
                flat = torch.cat([part.weight.reshape(-1) for part in group]).float()
                self._fused(group, _split_like(flat, group), ratio, skip, at_rest)
                rounded = round_stochastically(flat, draws.bits(group[0].spec, flat.numel()))
                torch._foreach_copy_([part.weight for part in group], _split_like(rounded, group))

    def _fused(self, some: Sequence[WeightPart], wide: list[Tensor], ratio: Tensor, skip: Tensor, at: Scalars) -> None:
        """Run the kernel, which changes `wide`, the weights in fp32, in place."""
        step = torch.zeros((), device=self._device) + at.t  # a copy from the host would wait
        torch._fused_adamw_(
            wide,
            [part.gradient for part in some],
            [part.first for part in some],
            [part.second for part in some],
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
class FactoredState:
    """Adafactor's state of one parameter.

    Attributes:
        whole: Shape of the whole parameter.
        share: 1 / the ranks that hold the same part.
        rate: Factor of the learning rate.
        state: {prefix such as "row/": whole tensor}.
    """

    name: str
    whole: Shape
    spec: Spec
    share: float
    rate: float
    state: dict[str, Tensor]

    @property
    def specs(self) -> list[Spec]:
        """By which a rank finds its part of each tensor in `state`."""
        return [self.spec[:-1], (*self.spec[:-2], self.spec[-1])] if len(self.spec) > 1 else [self.spec]


class Adafactor:
    """Adafactor for parameters that may be split over the mesh. Every rank holds the whole state, which is small."""

    def __init__(self, layout: ShardLayout, world: World, device: torch.device, stored: Reader | None) -> None:
        self._world = world
        self._all = [
            FactoredState(
                name,
                layout.shapes[name],
                spec,
                share=1 / piece_copies(spec, layout.mesh),
                rate=layout.rates.get(name, 1.0),
                state={
                    prefix: (stored.tensor(prefix + name) if stored else torch.zeros(shape)).to(device)
                    for prefix, shape in state_shapes("adafactor", layout.shapes[name]).items()
                },
            )
            for name, spec in layout.states.items()
        ]

    def state(self) -> Iterator[StateTensor]:
        for factored in self._all:
            for prefix, value in factored.state.items():
                yield StateTensor(prefix + factored.name, tuple(value.shape), (None,) * value.dim(), value)

    def apply(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        ratio: Tensor,
        good: Tensor,
        at: Scalars,
        draws: RandomBits | None = None,
    ) -> None:
        gradients = [gradient / ratio for gradient in gradients]
        sums = self._together(
            [
                self._placed(factored, squared_sums(weight.float(), gradient))
                for factored, weight, gradient in zip(self._all, weights, gradients, strict=True)
            ]
        )
        moves = []
        for factored, gradient, (*totals, _) in zip(self._all, gradients, sums, strict=True):
            for old, new in zip(
                factored.state.values(),
                update_moments(list(factored.state.values()), totals, factored.whole, at),
                strict=True,
            ):
                old.copy_(torch.where(good, new, old))
            moves.append(self._direction(factored, gradient))
        lengths = self._together(
            [[(m * m).sum() * factored.share] for factored, m in zip(self._all, moves, strict=True)]
        )
        for factored, weight, move, total_sums, (length,) in zip(self._all, weights, moves, sums, lengths, strict=True):
            wide = weight.float()
            own = at._replace(lr=at.lr * factored.rate)
            moved = apply_update(wide, move, total_sums[-1], length, math.prod(factored.whole), own)
            store(weight, torch.where(good, moved, wide), factored.spec, draws)

    def _direction(self, factored: FactoredState, gradient: Tensor) -> Tensor:
        parts = [
            piece(value, spec, self._world) for value, spec in zip(factored.state.values(), factored.specs, strict=True)
        ]
        level = parts[0]  # not used for parameters of one dimension
        if ROW in factored.state:
            level = piece(factored.state[ROW].mean(-1, keepdim=True), (*factored.spec[:-2], None), self._world)
        direction: Tensor = update_direction(parts, level, gradient)
        return direction

    def _placed(self, factored: FactoredState, part_sums: list[Tensor]) -> list[Tensor]:
        """Return this rank's sums in zeros of the whole's shape, so that the sum over ranks is the whole."""
        if self._world.groups is None:
            return part_sums
        *sums, size = part_sums
        placed = [torch.zeros_like(value) for value in factored.state.values()]
        for whole, spec, value in zip(placed, factored.specs, sums, strict=True):
            piece(whole, spec, self._world).copy_(value * factored.share)
        return [*placed, size * factored.share]

    def _together(self, groups: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return the values, each summed over all ranks."""
        if self._world.groups is None:
            return groups
        from trnflow.tasks.training.native.collectives import all_reduce

        # sums over a split parameter need the other ranks: those of all parameters are one exchange
        totals = iter(all_reduce([value for values in groups for value in values], None))
        return [[next(totals) for _ in values] for values in groups]


def _chunks(some: Iterable[WeightPart], size: int) -> Iterator[list[WeightPart]]:
    """Yield groups of about `size` numbers with one kind of spec: small weights, or a part of a large one."""
    pending: dict[frozenset[str | None], list[WeightPart]] = {}
    for part in some:
        sort = frozenset(part.spec) - {None}
        for weight, *others in zip(*map(row_chunks, part[1:]), strict=True):
            group = pending.setdefault(sort, [])
            group.append(WeightPart(part.spec, weight, *others))
            if sum(piece_of.weight.numel() for piece_of in group) >= size:
                yield pending.pop(sort)
    yield from pending.values()


def _split_like(flat: Tensor, group: Sequence[WeightPart]) -> list[Tensor]:
    """Return views of `flat` in the shapes of the group's weights."""
    parts = torch.split(flat, [part.weight.numel() for part in group])
    return [values.view(part.weight.shape) for values, part in zip(parts, group, strict=True)]
