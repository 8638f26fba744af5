"""AdamW whose moments take 8 bits: blocks of 256 numbers with a scale each, by bitsandbytes' kernels (https://arxiv.org/abs/2110.02861).

A parameter's moments are fp32 only while it is updated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trnflow.tasks.system.optional_packages import require_bitsandbytes
from trnflow.tasks.training.layout.slices import ShardLayout
from trnflow.tasks.training.native.updates import FusedAdamW, StateTensor, WeightPart
from trnflow.tasks.training.optim.optimizer import BLOCK_8BIT, LEAST_8BIT, Scalars, is_decayed
from trnflow.tasks.training.optim.rounding import RandomBits
from trnflow.tasks.training.partition_specs import Shape
from trnflow.tasks.training.shared_types import FIRST_MOMENT, SCALES, SECOND_MOMENT
from trnflow.tasks.training.world import World

if TYPE_CHECKING:
    from trnflow.tasks.training.checkpoint.shards import Reader


class Moment:
    """A moment of one parameter: codes and scales, or of a small one fp32 and no scales.

    name: in a checkpoint. levels: fp32 [256], what the codes mean.
    """

    def __init__(self, name: str, shape: Shape, levels: Tensor, stored: Reader | None) -> None:
        self.name, self._levels = name, levels
        small = math.prod(shape) < LEAST_8BIT
        blocks = 0 if small else -(-math.prod(shape) // BLOCK_8BIT)
        self.codes = torch.zeros(shape, dtype=torch.float32 if small else torch.uint8)
        self.scales = torch.zeros(blocks)
        if stored:
            self.codes = stored.tensor(name)
            self.scales = stored.tensor(SCALES + name) if blocks else self.scales
        self.codes, self.scales = self.codes.to(levels.device), self.scales.to(levels.device)

    def to_fp32(self) -> Tensor:
        """Return the numbers; of a small parameter the tensor itself."""
        if not len(self.scales):
            return self.codes
        wide: Tensor = _kernels().dequantize_blockwise(self.codes, self.scales, self._levels, BLOCK_8BIT, torch.float32)
        return wide

    def store(self, wide: Tensor, good: Tensor) -> None:
        """Quantise new numbers. good: scalar bool; false changes nothing."""
        if len(self.scales):
            codes, scales = _kernels().quantize_blockwise(wide, self._levels, BLOCK_8BIT)
            self.codes.copy_(torch.where(good, codes, self.codes))
            self.scales.copy_(torch.where(good, scales, self.scales))


class AdamW8bit(FusedAdamW):
    """AdamW by PyTorch's fused kernel, a parameter at a time, for parameters that are whole on each device."""

    def __init__(self, layout: ShardLayout, world: World, device: torch.device, stored: Reader | None) -> None:
        self._layout, self._device = layout, device
        signed, unsigned = (_levels(signed=signed).to(device) for signed in (True, False))
        self._moments = [
            [
                Moment(prefix + name, layout.shapes[name], levels, stored)
                for prefix, levels in ((FIRST_MOMENT, signed), (SECOND_MOMENT, unsigned))
            ]
            for name in layout.states
        ]

    def state(self) -> Iterator[StateTensor]:
        for moment in (moment for both in self._moments for moment in both):
            parts = {moment.name: moment.codes, **({SCALES + moment.name: moment.scales} if len(moment.scales) else {})}
            for name, value in parts.items():
                yield StateTensor(name, tuple(value.shape), (None,) * value.dim(), value)

    def apply(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        ratio: Tensor,
        good: Tensor,
        at: Scalars,
        draws: RandomBits | None = None,
    ) -> None:
        skip = (~good).float()
        for (name, spec), weight, gradient, moments in zip(
            self._layout.states.items(), weights, gradients, self._moments, strict=True
        ):
            part = WeightPart(spec, weight, gradient, *(moment.to_fp32() for moment in moments))
            decay = at.weight_decay if is_decayed(tuple(weight.shape)) else 0.0
            rates = at._replace(lr=at.lr * self._layout.rates.get(name, 1.0), weight_decay=decay)
            self._fused([part], [weight], ratio, skip, rates)
            for moment, wide in zip(moments, (part.first, part.second), strict=True):
                moment.store(wide, good)


def _levels(*, signed: bool) -> Tensor:
    require_bitsandbytes("train.optimizer is adamw_8bit")
    # imported by name: an import statement would put its version into the keys of all trainings
    levels: Tensor = import_module("bitsandbytes.functional").create_dynamic_map(signed=signed)
    return levels


def _kernels() -> Any:
    return torch.ops.bitsandbytes
