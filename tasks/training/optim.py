"""AdamW with decoupled weight decay, its schedule and its scalars.

All that varies from step to step, and every hyperparameter, travels to the device as one small vector, so that no value of
them makes another graph. Biases and norms, whose tensors have one dimension, are not decayed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from tasks.training.config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

INFINITE_NORM = 3e38  # "no clipping" must still be a number: it is divided by


class Scalars(NamedTuple):
    """lr: of this step; t: its number, from 1; fresh1, fresh2: 1 - beta; correction1: 1 - beta1^t; correction2:
    sqrt(1 - beta2^t); scale: 1 / the global count of targets."""

    lr: float
    t: float
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


def scalars(config: TrainConfig, step: int, total: int, supervised: int) -> Scalars:
    """Those of update `step` (from 0) of `total`. supervised: targets of the whole global batch."""
    return Scalars(
        lr=learning_rate(config, step, total),
        t=step + 1,
        beta1=config.beta1,
        fresh1=1 - config.beta1,
        beta2=config.beta2,
        fresh2=1 - config.beta2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        max_norm=config.max_grad_norm or INFINITE_NORM,
        correction1=1 - config.beta1 ** (step + 1),
        correction2=math.sqrt(1 - config.beta2 ** (step + 1)),
        scale=1 / max(supervised, 1),
    )


def learning_rate(config: TrainConfig, step: int, total: int) -> float:
    """Linear warm-up over `warmup_ratio` of the steps, then the schedule, down to 0 after the last."""
    warmup = math.ceil(total * config.warmup_ratio)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, total - warmup)
    factor = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[config.schedule]
    return config.learning_rate * factor


def decays(shape: tuple[int, ...]) -> bool:
    return len(shape) > 1


def clipped(norm: Tensor, max_norm: Tensor) -> Tensor:
    """The factor that brings gradients of `norm` down to `max_norm`; 1 if they are below."""
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


def adamw(weight: Tensor, first: Tensor, second: Tensor, gradient: Tensor, at: list[Tensor]) -> tuple[Tensor, ...]:
    """One update, out of place: (weight, first, second moment). at: the `Scalars` as device tensors."""
    s = Scalars(*at)  # type: ignore[arg-type]
    first = first * s.beta1 + gradient * s.fresh1
    second = second * s.beta2 + gradient * gradient * s.fresh2
    step = first / (second.sqrt() / s.correction2 + s.eps)
    decay = s.lr * s.weight_decay if decays(tuple(weight.shape)) else 0.0
    return weight - decay * weight - s.lr / s.correction1 * step, first, second
