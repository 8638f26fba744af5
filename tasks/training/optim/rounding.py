"""Stochastic rounding from fp32 to bf16: up or down at random, so that the result is right on average.

bf16 keeps 8 bits of a weight. Rounding to nearest loses each update that is smaller than half of the last bit. Stochastic
rounding adds 16 random bits to the 16 bits that bf16 lacks and cuts them off: an update of a tenth of the last bit then
changes the weight in one step of ten. A number that bf16 holds exactly never changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from trnflow.tasks.training.partition_specs import Spec
from trnflow.tasks.training.world import World

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LARGEST = 0x7F7F0000  # the bit pattern of bf16's largest number
MAGNITUDE, LACKING = 0x7FFFFFFF, 0xFFFF  # masks of a bit pattern: all bits but the sign; the bits that bf16 lacks

CHUNKS = {"cpu": 1 << 18, "cuda": 1 << 24}
"""{device: number of weights that are converted to fp32 at once}: few enough for a processor's cache, enough to keep a
GPU busy."""


def _view(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.view(dtype)


def round_stochastically(value: Tensor, bits: Tensor, bitcast: Callable[[Tensor, Any], Tensor] = _view) -> Tensor:
    """Return `value` (fp32) in bf16, each element rounded at random to one of its two neighbours, the nearer one more
    often.

    bits: int32, shaped as `value`, of which the lower 16 bits are random; bitcast: a function that reinterprets a
    tensor's bits as another dtype. Infinities and NaN are not changed. A value beyond bf16's range is cast without
    random bits; a value within the range never becomes infinite."""
    import torch

    pattern = bitcast(value, torch.int32)
    # the random bits to add: all 16, fewer next to bf16's largest number, none beyond it
    room = (pattern & MAGNITUDE).neg_().add_(LARGEST).clamp_(0, LACKING)
    moved = (bits & room).add_(pattern).bitwise_and_(room.bitwise_not_())
    return bitcast(moved, torch.float32).to(torch.bfloat16)


class RandomBits:
    """The random bits with which one update (optimizer step) rounds weights stochastically from fp32 to bf16.

    The bits depend on the update's seed alone, so a resumed run gets the same bits. Ranks (the processes that train
    together) that hold the same part of a tensor get the same bits, other ranks other bits.

    seed: the update's seed; world: this rank's position on the mesh of devices; device: where the bits are made."""

    def __init__(self, seed: int, world: World, device: torch.device) -> None:
        self._seed, self._world, self._device = seed, world, device
        self._lanes: dict[tuple[int | None, ...], _Generators] = {}

    def bits(self, spec: Spec, count: int) -> Tensor:
        """Return int32 [count], of which the lower 16 bits are random, for rounding the part of a tensor that this rank
        (process of the training) holds. Each call returns new bits. spec: for each dimension of the tensor, the axis of
        the device mesh that splits it, or None.

        All ranks that hold the same part must make the same calls in the same order."""
        import torch

        lanes = self._of(spec)
        drawn = [lanes.draw(min(count - at, lanes.size)) for at in range(0, count, lanes.size)]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn)

    def _of(self, spec: Spec) -> _Generators:
        """Return the generators for tensors with this spec, seeded by this rank's position along the axes that split
        them."""
        place = tuple(getattr(self._world, axis) if axis in spec else None for axis in ("data", "model"))
        if place not in self._lanes:
            digest = hashlib.blake2b(repr((self._seed, place)).encode(), digest_size=8).digest()
            self._lanes[place] = _Generators(int.from_bytes(digest), self._device)
        return self._lanes[place]


class _Generators:
    """Many small generators side by side (xorshift64, Marsaglia 2003), seeded by torch's generator.

    On the CPU, drawing each number from torch's generator takes longer than the update itself. size: the largest number
    of values in one draw."""

    def __init__(self, seed: int, device: torch.device) -> None:
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        self.size = CHUNKS[device.type]
        self._state = torch.empty(self.size // 4, dtype=torch.int64, device=device)
        self._state.random_(-(1 << 63), None, generator=generator)

    def draw(self, count: int) -> Tensor:
        """Return int32 [count], of which the lower 16 bits are random."""
        import torch

        state = self._state[: -(-count // 4)]
        state.bitwise_xor_(state << 13)
        state.bitwise_xor_((state >> 7).bitwise_and_((1 << 57) - 1))  # masks the sign: an unsigned shift
        state.bitwise_xor_(state << 17)
        return state.view(torch.int16)[:count].int()


def store(weight: Tensor, value: Tensor, spec: Spec, draws: RandomBits | None) -> None:
    """Write new weights `value` (fp32) into the tensor `weight`, in place. With `draws` the new weights are rounded
    stochastically to bf16 (up or down at random, right on average), some rows at a time. Without `draws` they are
    copied, and converted to the dtype of `weight`.

    spec: for each dimension of the weight, the axis of the device mesh that splits the dimension, or None; from `spec`
    follows which ranks get the same bits; draws: the random bits of this update, or None."""
    if draws is None:
        weight.copy_(value)
        return
    for part, new in zip(row_chunks(weight), row_chunks(value), strict=True):
        part.copy_(round_stochastically(new, draws.bits(spec, new.numel()).view(new.shape)))


def row_chunks(tensor: Tensor) -> Iterator[Tensor]:
    """Yield views of consecutive rows (indices of the first dimension) of the tensor, which together are the whole
    tensor. A view has at most 2^18 numbers on the CPU and 2^24 on a GPU, but at least one row."""
    import torch

    whole = tensor if tensor.dim() else tensor.unsqueeze(0)
    size = max(1, whole.numel() // max(1, len(whole)))
    yield from torch.split(whole, max(1, CHUNKS[tensor.device.type] // size))
