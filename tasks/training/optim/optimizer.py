"""The numbers of an update, AdamW with decoupled weight decay, and the shapes of both optimizers' states.

All numbers that vary from step to step go to the device as one small vector, so that no value changes the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.optim.learning_rate import learning_rate
from trnflow.tasks.training.partition_specs import Shape
from trnflow.tasks.training.shared_types import COLUMN, FIRST_MOMENT, ROW, SECOND_MOMENT

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_8BIT, LEAST_8BIT = 256, 4096
"""Optimizer adamw_8bit: numbers that share a scale; moments of parameters with fewer numbers are fp32, as in bitsandbytes."""

INFINITE_NORM = 3e38  # stands for "no clipping": the norm is divided by it, so it must be finite


class Scalars(NamedTuple):
    """The numbers that one update needs.

    Attributes:
        t: The update's number, from 1; a scalar on the device where the host does not know how many were skipped.
        fresh1, fresh2: 1 - beta1, 1 - beta2.
        max_norm: Gradients are clipped above it; huge for never.
        correction1, correction2: 1 - beta1^t, sqrt(1 - beta2^t): AdamW's bias corrections.
        scale: 1 / the global batch's targets, or the sum of their class weights.
    """

    lr: float
    t: float | Tensor
    beta1: float
    fresh1: float
    beta2: float
    fresh2: float
    eps: float
    weight_decay: float
    max_norm: float
    correction1: float
    correction2: float
    scale: float


def scalars(config: TrainConfig, step: int, total: int, targets: float) -> Scalars:
    """Return what update `step` (from 0) of `total` computes with. targets: their number in the batch, or the sum of their
    class weights, by which the loss is divided."""
    # Adafactor's grows with the steps: 1 - t^-0.8
    beta2 = config.beta2 if config.optimizer != "adafactor" else 1 - (step + 1) ** -0.8
    return Scalars(
        lr=learning_rate(config, step, total),
        t=step + 1,
        beta1=config.beta1,
        fresh1=1 - config.beta1,
        beta2=beta2,
        fresh2=1 - beta2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        max_norm=config.max_grad_norm or INFINITE_NORM,
        correction1=1 - config.beta1 ** (step + 1),
        correction2=math.sqrt(1 - config.beta2 ** (step + 1)),
        scale=1 / targets if targets else 1.0,
    )


def state_shapes(optimizer: str, shape: Shape) -> dict[str, Shape]:
    """Return {prefix of the name in a checkpoint: shape} of the state that the optimizer keeps for a parameter."""
    if optimizer == "adamw":
        return {FIRST_MOMENT: shape, SECOND_MOMENT: shape}
    return {ROW: shape[:-1], COLUMN: (*shape[:-2], shape[-1])} if len(shape) > 1 else {SECOND_MOMENT: shape}


def bytes_8bit(shape: Shape) -> int:
    """Return the bytes of both moments that adamw_8bit keeps of a parameter."""
    numbers = math.prod(shape)
    return 8 * numbers if numbers < LEAST_8BIT else 2 * (numbers + 4 * -(-numbers // BLOCK_8BIT))


def is_decayed(shape: tuple[int, ...]) -> bool:
    """Return whether weight decay applies: not to biases and norms."""
    return len(shape) > 1


def clip_factor(norm: Tensor, max_norm: Tensor) -> Tensor:
    """Return the factor that makes the norm of all gradients at most `max_norm`."""
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


def adamw(weight: Tensor, first: Tensor, second: Tensor, *, gradient: Tensor, at: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return (weight, first, second moment) after an update. gradient: scaled, clipped; at: `Scalars` as tensors."""
    s = Scalars(*at)
    first = first * s.beta1 + gradient * s.fresh1
    second = second * s.beta2 + gradient * gradient * s.fresh2
    step = first / (second.sqrt() / s.correction2 + s.eps)
    decay = s.lr * s.weight_decay if is_decayed(tuple(weight.shape)) else 0.0
    return weight - decay * weight - s.lr / s.correction1 * step, first, second
