"""Dynamic loss scaling for fp16 by the rules of torch.amp.GradScaler: gradients that fp16 would round to 0 are computed of a
larger loss. The device decides, and the host does not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trnflow.tasks.training.native.updates import StateTensor

if TYPE_CHECKING:
    from trnflow.tasks.training.checkpoint.shards import Reader

FIRST_SCALE, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000
LEAST_SCALE = 1.0  # gradients that are too large for fp16 even so are the model's fault
NAME = "loss_scale"


class LossScale:
    """The factor of the loss, the same on every rank. A power of two: multiplying and dividing by it loses no digits.

    stored: A checkpoint, or None. Attributes: `scale`, and `skipped`, the updates that were left out: fp32 scalars.
    """

    def __init__(self, device: torch.device, stored: Reader | None) -> None:
        state = stored.tensor(NAME) if stored else torch.tensor([FIRST_SCALE, 0.0, 0.0])
        self.scale, self.skipped, growth = state.to(device).unbind()
        self._growth = growth.int()

    def update(self, good: Tensor) -> Tensor:
        """Let the scale fall after an update that was not `good` (scalar bool), and grow after enough good ones. Return, as
        bool, whether the scale could still fall."""
        could_fall = self.scale >= LEAST_SCALE
        bad = (~good).float()
        torch._amp_update_scale_(self.scale, self._growth, bad, GROWTH, BACKOFF, INTERVAL)
        self.skipped += bad
        return could_fall

    def state(self) -> StateTensor:
        """Return what a checkpoint keeps, as one tensor."""
        return StateTensor(NAME, (3,), (None,), torch.stack([self.scale, self.skipped, self._growth.float()]))
