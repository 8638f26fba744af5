"""Stochastic rounding: fp32 to bf16, up or down with the odds of the distance, so that on average nothing is lost.

bf16 keeps 8 bits of a weight: rounded to nearest, an update below half of the last one is forgotten, each time anew. Rounded
so, it moves the weight by the whole of that bit once in as many steps as it is smaller. Arithmetic on the bit pattern: 16
random bits are added to the 16 that bf16 lacks, and these are cut off. What bf16 holds stays as it is, whatever the bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tasks.training.plan import Spec
from tasks.training.ranks import World

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LARGEST = 0x7F7F0000  # the pattern of the largest number that bf16 holds
MAGNITUDE, LACKING = 0x7FFFFFFF, 0xFFFF  # of a pattern: all but the sign; what bf16 has no room for

CHUNKS = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Weights that are wide at a time: few enough for a processor's cache, as many as keep a GPU busy."""


def _view(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.view(dtype)


def rounded(value: Tensor, bits: Tensor, bitcast: Callable[[Tensor, Any], Tensor] = _view) -> Tensor:
    """value: fp32; bits: int32, of which the lower 16 are random; bitcast: the same bits as another type -> bf16.

    One of the two neighbours of each value; infinities and NaN as they are, and what lies beyond bf16's range as a plain cast
    takes it. Never from a value within bf16's range to infinity."""
    import torch

    pattern = bitcast(value, torch.int32)
    # how far it may move: all 16 bits, but for the last number before the end of the range, and not at all beyond
    room = (pattern & MAGNITUDE).neg_().add_(LARGEST).clamp_(0, LACKING)
    moved = (bits & room).add_(pattern).bitwise_and_(room.bitwise_not_())
    return bitcast(moved, torch.float32).to(torch.bfloat16)


class Draws:
    """The random bits of one update. They follow from its seed alone, so that a resumed run has those of one that was not
    stopped; ranks that hold the same part of a tensor draw the same, others their own."""

    def __init__(self, seed: int, world: World, device: torch.device) -> None:
        self._seed, self._world, self._device = seed, world, device
        self._lanes: dict[tuple[int | None, ...], _Lanes] = {}

    def bits(self, spec: Spec, count: int) -> Tensor:
        """int32 [count], of which the lower 16 are random. Calls must come in the same order on all ranks that hold a part under
        `spec`."""
        import torch

        lanes = self._of(spec)
        drawn = [lanes.draw(min(count - at, lanes.size)) for at in range(0, count, lanes.size)]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn)

    def _of(self, spec: Spec) -> _Lanes:
        """For each kind of spec its own, seeded by the place that this rank has in it."""
        place = tuple(getattr(self._world, axis) if axis in spec else None for axis in ("data", "model"))
        if place not in self._lanes:
            digest = hashlib.blake2b(repr((self._seed, place)).encode(), digest_size=8).digest()
            self._lanes[place] = _Lanes(int.from_bytes(digest), self._device)
        return self._lanes[place]


class _Lanes:
    """Many small generators side by side, seeded by torch's: Marsaglia's xorshift64 (2003). To draw each number from torch's own
    takes longer on the CPU than the update itself. size: what one draw gives at most, a chunk."""

    def __init__(self, seed: int, device: torch.device) -> None:
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        self.size = CHUNKS[device.type]
        self._state = torch.empty(self.size // 4, dtype=torch.int64, device=device)
        self._state.random_(-(1 << 63), None, generator=generator)

    def draw(self, count: int) -> Tensor:
        """int32 [count]."""
        import torch

        state = self._state[: -(-count // 4)]
        state.bitwise_xor_(state << 13)
        state.bitwise_xor_((state >> 7).bitwise_and_((1 << 57) - 1))  # as of an unsigned number
        state.bitwise_xor_(state << 17)
        return state.view(torch.int16)[:count].int()


def put(weight: Tensor, value: Tensor, spec: Spec, draws: Draws | None) -> None:
    """Make `value`, which is fp32, the weight's: as it is, or with `draws` rounded to bf16, a chunk at a time."""
    if draws is None:
        weight.copy_(value)
        return
    for part, new in zip(rows(weight), rows(value), strict=True):
        part.copy_(rounded(new, draws.bits(spec, new.numel()).view(new.shape)))


def rows(tensor: Tensor) -> Iterator[Tensor]:
    """Its rows, as many at a time as make about a chunk: views."""
    import torch

    whole = tensor if tensor.dim() else tensor.unsqueeze(0)
    size = max(1, whole.numel() // max(1, len(whole)))
    yield from torch.split(whole, max(1, CHUNKS[tensor.device.type] // size))
