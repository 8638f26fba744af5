"""Sum the gradients of several passes in fp32.

PyTorch adds a gradient to `parameter.grad` in the parameter's dtype. In bf16 the sum of 16 passes is wrong by 0.5 %,
the sum of 256 passes by 1.4 %. Here a hook adds each gradient to an fp32 sum as soon as the backward pass has computed
the gradient, and then frees the gradient. Between passes the sums take 4 bytes for each trained parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from trnflow.tasks.training.native.sharding import local_tensor

if TYPE_CHECKING:
    from torch import Tensor


class GradientSums:
    """The fp32 sums of the gradients of `parameters` over several backward passes, added up by hooks while the passes run.

    The sums take the place of `parameter.grad`, which is freed at once. A parameter's gradients must be split over the
    devices in the same way in all passes."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._sums: list[Tensor | None] = [None] * len(parameters)
        for number, parameter in enumerate(parameters):
            # FSDP calls these hooks after it has reduced the gradient
            parameter.register_post_accumulate_grad_hook(partial(self._add, number))  # type: ignore[no-untyped-call]

    def take(self) -> list[Tensor | None]:
        """Return the fp32 sum of each parameter's gradients over the passes since the last call, None where there was
        no gradient, and start new sums."""
        found, self._sums = self._sums, [None] * len(self._sums)
        return found

    def _add(self, number: int, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        total = self._sums[number]
        if gradient is None:
            return
        if total is None:
            self._sums[number] = gradient.float()
        else:
            local_tensor(total).add_(local_tensor(gradient))
