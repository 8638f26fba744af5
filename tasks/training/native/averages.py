"""A moving average of the trained weights, as torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from trnflow.tasks.training.layout.slices import ShardLayout, piece_slices
from trnflow.tasks.training.native.updates import StateTensor
from trnflow.tasks.training.shared_types import AVERAGE
from trnflow.tasks.training.world import World

if TYPE_CHECKING:
    from trnflow.tasks.training.checkpoint.shards import Reader


class Averages:
    """This rank's part of the averages, in fp32.

    weights: The fp32 weights, which `update` reads and `swap` exchanges with their averages. stored: A checkpoint.
    """

    def __init__(
        self, decay: float, weights: Sequence[Tensor], layout: ShardLayout, world: World, stored: Reader | None
    ) -> None:
        self._decay, self._weights, self._layout = decay, weights, layout
        self._averages = [weight.detach().clone() for weight in weights]
        for (name, spec), average in zip(layout.states.items(), self._averages, strict=True) if stored else ():
            assert stored is not None
            average.copy_(stored.part(AVERAGE + name, piece_slices(layout.shapes[name], spec, world)))
        self.swapped = False

    def update(self, good: Tensor, t: float | Tensor) -> None:
        """Move the averages towards the weights after update `t` (from 1), whose weights they begin with. good: scalar bool;
        false changes nothing."""
        share = good.float() * (1.0 - self._decay * (t > 1))
        for average, weight in zip(self._averages, self._weights, strict=True):
            average.lerp_(weight, share)

    def swap(self) -> None:
        """Exchange the values of weights and averages, to the bit."""
        self.swapped = not self.swapped
        for average, weight in zip(self._averages, self._weights, strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)

    def state(self, prefix: str = AVERAGE) -> Iterator[StateTensor]:
        """Yield this rank's part of each average; to be called when they are not swapped."""
        for (name, spec), value in zip(self._layout.states.items(), self._averages, strict=True):
            yield StateTensor(prefix + name, self._layout.shapes[name], spec, value)
