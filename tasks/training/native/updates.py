"""The optimizers of engine native: AdamW by PyTorch's fused kernel, and Adafactor over the mesh.

Each optimizer holds this rank's part of the optimizer's state and yields it by name for checkpoints. The weights are
fp32 (separate copies of the parameters, called masters, or the parameters themselves), or bf16 with stochastic
rounding: then a few weights at a time are converted to fp32, updated, and rounded back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from trnflow.tasks.training.layout.slices import ShardLayout, piece, piece_copies
from trnflow.tasks.training.optim.adafactor import apply_update, squared_sums, update_direction, update_moments
from trnflow.tasks.training.optim.optimizer import Scalars, is_decayed, state_shapes
from trnflow.tasks.training.optim.rounding import CHUNKS, RandomBits, round_stochastically, row_chunks, store
from trnflow.tasks.training.partition_specs import Shape, Spec
from trnflow.tasks.training.shared_types import FIRST_MOMENT, ROW, SECOND_MOMENT
from trnflow.tasks.training.world import World

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from trnflow.tasks.training.checkpoint.shards import Reader


class StateTensor(NamedTuple):
    """A tensor of a checkpoint (a parameter, or a tensor of the optimizer's state), as this rank holds it.

    Attributes:
        name: the parameter's name with a prefix such as "first/".
        whole: the shape of the whole tensor.
        spec: the tensor's partition spec: for each dimension the mesh axis that splits the dimension, or None.
        value: this rank's part of the tensor; the whole tensor if nothing splits it.
    """

    name: str
    whole: Shape
    spec: Spec
    value: Tensor


class Update(Protocol):
    """Interface of the optimizers of engine native: an optimizer holds its state (such as moments) and updates
    weights."""

    def state(self) -> Iterator[StateTensor]:
        """Yield the tensors of the optimizer's state, for a checkpoint: of each tensor the part that this rank
        (process) holds."""

    def apply(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        ratio: Tensor,
        good: Tensor,
        at: Scalars,
        draws: RandomBits | None = None,
    ) -> None:
        """Update `weights`, and the optimizer's state, in place from the gradients divided by `ratio`.

        Args:
            weights, gradients: this rank's part of each trained weight, and of its gradient in fp32.
            ratio: a scalar tensor by which gradients are divided; above 1 where gradients are clipped.
            good: a scalar bool tensor; if it is false (a loss or gradient is not finite), nothing changes.
            at: the learning rate and the other numbers of the update.
            draws: random bits for rounding bf16 weights; None for fp32 weights.
        """


def make_update(
    optimizer: str, layout: ShardLayout, world: World, device: torch.device, stored: Reader | None
) -> Update:
    """Return the optimizer "adamw" or "adafactor" for this rank (process).

    layout: how parameters and optimizer state are split over the ranks; device: where the state is placed; stored: a
    checkpoint from which the state is read, or None for a state of zeros."""
    return (FusedAdamW if optimizer == "adamw" else Adafactor)(layout, world, device, stored)


class WeightPart(NamedTuple):
    """This rank's part of a weight with its gradient and AdamW's two moments, all of one shape. spec: the partition spec
    of the weight."""

    spec: Spec
    weight: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor


class FusedAdamW:
    """AdamW by PyTorch's fused kernel, in one pass over all fp32 weights. bf16 weights are updated a few at a time:
    each piece is converted to fp32, updated and rounded back at random."""

    def __init__(self, layout: ShardLayout, world: World, device: torch.device, stored: Reader | None) -> None:
        import torch

        zero = torch.zeros(())
        self._layout, self._device = layout, device
        self._first, self._second = (
            [
                _part(stored.tensor(prefix + name) if stored else zero.expand(layout.shapes[name]), spec, world, device)
                for name, spec in layout.states.items()
            ]
            for prefix in (FIRST_MOMENT, SECOND_MOMENT)
        )

    def state(self) -> Iterator[StateTensor]:
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
        columns = (self._layout.states.values(), weights, gradients, self._first, self._second)
        sorts: dict[bool, list[WeightPart]] = {True: [], False: []}
        for one in map(WeightPart._make, zip(*columns, strict=True)):
            sorts[is_decayed(tuple(one.weight.shape))].append(one)
        skip = (~good).float()
        for decayed, some in sorts.items():
            at_rest = at if decayed else at._replace(weight_decay=0.0)
            if draws is None:
                self._fused(some, [one.weight for one in some], ratio, skip, at_rest)
                continue
            for group in _chunks(some, CHUNKS[self._device.type]):
                flat, wide = _to_fp32(group)
                self._fused(group, wide, ratio, skip, at_rest)
                _round_back(group, flat, draws)

    def _fused(self, some: Sequence[WeightPart], wide: list[Tensor], ratio: Tensor, skip: Tensor, at: Scalars) -> None:
        """Run the kernel. wide: the weights in fp32, which the kernel changes in place."""
        import torch

        if not some:
            return
        step = torch.full((), at.t, dtype=torch.float32, device=self._device)  # a copy from the host would wait
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
class FactoredState:
    """Adafactor's state of one parameter.

    Attributes:
        name: the parameter's name.
        whole: the shape of the whole parameter.
        spec: the parameter's partition spec: for each dimension the mesh axis that splits the dimension, or None.
        share: 1 / the number of ranks that hold the same part of the parameter.
        state: the whole tensors of the state, by the prefix of their names in a checkpoint, such as "row/".
    """

    name: str
    whole: Shape
    spec: Spec
    share: float
    state: dict[str, Tensor]

    @property
    def specs(self) -> list[Spec]:
        """The partition spec of each tensor in `state`. The tensors are whole on every rank; by the spec a rank finds
        the part of a tensor that it needs for its part of the parameter."""
        return [self.spec[:-1], (*self.spec[:-2], self.spec[-1])] if len(self.spec) > 1 else [self.spec]


class Adafactor:
    """The optimizer Adafactor, for parameters that may be split over the mesh of devices. Every rank holds the whole
    optimizer state, which is small.

    Where a parameter is split over ranks, sums over the parameter need the other ranks. Such sums of all parameters
    are sent together."""

    def __init__(self, layout: ShardLayout, world: World, device: torch.device, stored: Reader | None) -> None:
        self._world = world
        self._all = [
            FactoredState(name, layout.shapes[name], spec, 1 / piece_copies(spec, layout.mesh), state)
            for name, spec in layout.states.items()
            for state in [_factors(name, layout.shapes[name], device, stored)]
        ]

    def state(self) -> Iterator[StateTensor]:
        for one in self._all:
            for prefix, value in one.state.items():
                yield StateTensor(prefix + one.name, tuple(value.shape), (None,) * value.dim(), value)

    def apply(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        ratio: Tensor,
        good: Tensor,
        at: Scalars,
        draws: RandomBits | None = None,
    ) -> None:
        import torch

        gradients = [gradient / ratio for gradient in gradients]
        sums = self._together(
            [
                self._placed(one, squared_sums(weight.float(), gradient))
                for one, weight, gradient in zip(self._all, weights, gradients, strict=True)
            ]
        )
        moves = []
        for one, gradient, (*totals, _) in zip(self._all, gradients, sums, strict=True):
            for old, new in zip(
                one.state.values(), update_moments(list(one.state.values()), totals, one.whole, at), strict=True
            ):
                old.copy_(torch.where(good, new, old))
            moves.append(self._direction(one, gradient))
        lengths = self._together([[(m * m).sum() * one.share] for one, m in zip(self._all, moves, strict=True)])
        for one, weight, move, found, (length,) in zip(self._all, weights, moves, sums, lengths, strict=True):
            wide = weight.float()
            moved = apply_update(wide, move, found[-1], length, math.prod(one.whole), at)
            store(weight, torch.where(good, moved, wide), one.spec, draws)

    def _direction(self, one: FactoredState, gradient: Tensor) -> Tensor:
        parts = [piece(value, spec, self._world) for value, spec in zip(one.state.values(), one.specs, strict=True)]
        level = parts[0]  # not used for parameters of one dimension
        if ROW in one.state:
            level = piece(one.state[ROW].mean(-1, keepdim=True), (*one.spec[:-2], None), self._world)
        found: Tensor = update_direction(parts, level, gradient)
        return found

    def _placed(self, one: FactoredState, found: list[Tensor]) -> list[Tensor]:
        """Return this rank's sums, each placed in zeros of the whole's shape, so that the sum over all ranks is the whole."""
        import torch

        if self._world.groups is None:
            return found
        *sums, size = found
        placed = [torch.zeros_like(value) for value in one.state.values()]
        for whole, spec, value in zip(placed, one.specs, sums, strict=True):
            piece(whole, spec, self._world).copy_(value * one.share)
        return [*placed, size * one.share]

    def _together(self, found: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return the values, each summed over all ranks. All values are sent together."""
        if self._world.groups is None:
            return found
        from trnflow.tasks.training.native.collectives import all_reduce

        totals = iter(all_reduce([value for values in found for value in values], None))
        return [[next(totals) for _ in values] for values in found]


def _chunks(some: Iterable[WeightPart], size: int) -> Iterator[list[WeightPart]]:
    """Yield groups of weight parts of about `size` numbers with the same kind of spec: several small weights, or a part of a
    large one."""
    pending: dict[frozenset[str | None], list[WeightPart]] = {}
    for one in some:
        sort = frozenset(one.spec) - {None}
        for weight, *others in zip(*map(row_chunks, one[1:]), strict=True):
            group = pending.setdefault(sort, [])
            group.append(WeightPart(one.spec, weight, *others))
            if sum(part.weight.numel() for part in group) >= size:
                yield pending.pop(sort)
    yield from pending.values()


def _to_fp32(group: Sequence[WeightPart]) -> tuple[Tensor, list[Tensor]]:
    """Return the weights in fp32: as one tensor, and as views of that tensor."""
    import torch

    flat = torch.cat([one.weight.reshape(-1) for one in group]).float()
    return flat, _split_like(flat, group)


def _round_back(group: Sequence[WeightPart], flat: Tensor, draws: RandomBits) -> None:
    """Round the fp32 weights and write them into the bf16 weights."""
    import torch

    found = round_stochastically(flat, draws.bits(group[0].spec, flat.numel()))
    torch._foreach_copy_([one.weight for one in group], _split_like(found, group))


def _split_like(flat: Tensor, group: Sequence[WeightPart]) -> list[Tensor]:
    """Return views of `flat` in the shapes of the group's weights."""
    import torch

    parts = torch.split(flat, [one.weight.numel() for one in group])
    return [part.view(one.weight.shape) for part, one in zip(parts, group, strict=True)]


def _part(tensor: Tensor, spec: Spec, world: World, device: torch.device) -> Tensor:
    """Copy this rank's part of a tensor to the device."""
    return piece(tensor, spec, world).to(device, copy=True).contiguous()


def _factors(name: str, whole: Shape, device: torch.device, stored: Reader | None) -> dict[str, Tensor]:
    """Return Adafactor's state of one parameter, read from `stored`, or zero."""
    import torch

    return {
        prefix: (stored.tensor(prefix + name) if stored else torch.zeros(shape)).to(device)
        for prefix, shape in state_shapes("adafactor", whole).items()
    }
