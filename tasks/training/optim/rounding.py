"""Stochastic rounding from fp32 to bf16: up or down at random, so that the result is right on average.

A number that bf16 holds exactly never changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from trnflow.tasks.training.device_kinds import KINDS
from trnflow.tasks.training.partition_specs import Spec
from trnflow.tasks.training.world import World

LARGEST = 0x7F7F0000  # the bit pattern of bf16's largest number
MAGNITUDE, LACKING = 0x7FFFFFFF, 0xFFFF  # masks of a bit pattern: all bits but the sign; the bits that bf16 lacks


def round_stochastically(
    value: Tensor, bits: Tensor, bitcast: Callable[[Tensor, Any], Tensor] = lambda tensor, dtype: tensor.view(dtype)
) -> Tensor:
    """Return fp32 values in bf16, each rounded at random to a neighbour, the nearer one more often.

    bits: int32 of the values' shape, the lower 16 random. bitcast: Reinterprets a tensor's bits. Infinities and NaN
    stay; no value in bf16's range becomes infinite.
    """
    # rounding to nearest would lose each update below half of the last bit
    pattern = bitcast(value, torch.int32)
    # the random bits to add: all 16, fewer next to bf16's largest number, none beyond it
    room = (pattern & MAGNITUDE).neg_().add_(LARGEST).clamp_(0, LACKING)
    moved = (bits & room).add_(pattern).bitwise_and_(room.bitwise_not_())
    return bitcast(moved, torch.float32).to(torch.bfloat16)


class RandomBits:
    """The random bits of one update, from its seed alone: equal on ranks that hold the same part of a tensor."""

    def __init__(self, seed: int, world: World, device: torch.device) -> None:
        self._seed, self._world, self._device = seed, world, device
        self._lanes: dict[tuple[int | None, ...], _Generators] = {}

    def bits(self, spec: Spec, count: int) -> Tensor:
        """Return int32 [count], the lower 16 bits random. Ranks that hold the same part must make the same calls."""
        lanes = self._of(spec)
        drawn = [lanes.draw(min(count - at, lanes.size)) for at in range(0, count, lanes.size)]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn)

    def _of(self, spec: Spec) -> _Generators:
        """Return the generators of this spec, seeded by this rank's position along the axes that split it."""
        place = tuple(self._world.part(axis) if axis in spec else None for axis in ("data", "model"))
        if place not in self._lanes:
            digest = hashlib.blake2b(repr((self._seed, place)).encode(), digest_size=8).digest()
            self._lanes[place] = _Generators(int.from_bytes(digest), self._device)
        return self._lanes[place]


class _Generators:
    """Many small generators side by side (xorshift64, Marsaglia 2003), seeded by torch's."""

    def __init__(self, seed: int, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(seed)
        self.size = KINDS[device.type].chunk
        # on the CPU, drawing each number from torch's generator takes longer than the update
        self._state = torch.empty(self.size // 4, dtype=torch.int64, device=device)
        self._state.random_(-(1 << 63), None, generator=generator)

    def draw(self, count: int) -> Tensor:
        """Return int32 [count], the lower 16 bits random."""
        state = self._state[: -(-count // 4)]
        state.bitwise_xor_(state << 13)
        state.bitwise_xor_((state >> 7).bitwise_and_((1 << 57) - 1))  # masks the sign: an unsigned shift
        state.bitwise_xor_(state << 17)
        return state.view(torch.int16)[:count].int()


def store(weight: Tensor, value: Tensor, spec: Spec, draws: RandomBits | None) -> None:
    """Write fp32 values into `weight`, rounded stochastically with `draws`."""
    if draws is None:
        weight.copy_(value)
        return
    # some rows at a time: few enough for a processor's cache
    for part, new in zip(row_chunks(weight), row_chunks(value), strict=True):
        part.copy_(round_stochastically(new, draws.bits(spec, new.numel()).view(new.shape)))


def row_chunks(tensor: Tensor) -> Iterator[Tensor]:
    """Yield views of consecutive rows, of at most the device's `chunk` of numbers but at least a row."""
    whole = tensor if tensor.dim() else tensor.unsqueeze(0)
    size = max(1, whole.numel() // max(1, len(whole)))
    yield from torch.split(whole, max(1, KINDS[tensor.device.type].chunk // size))
