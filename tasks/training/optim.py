"""The optimizers' state and scalars, the schedules, and AdamW with decoupled weight decay; `adafactor` has a file of its own.

All that varies from step to step, and every hyperparameter, travels to the device as one small vector, so that no value of
them makes another graph. Biases and norms, whose tensors have one dimension, are not decayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.training.config import TrainConfig
from tasks.training.names import COLUMN, FIRST, ROW, SECOND
from tasks.training.plan import Shape

if TYPE_CHECKING:
    from torch import Tensor

INFINITE_NORM = 3e38  # "no clipping" must still be a number: it is divided by


class Scalars(NamedTuple):
    """lr: of this step; t: its number, from 1; fresh1, fresh2: 1 - beta; correction1: 1 - beta1^t; correction2:
    sqrt(1 - beta2^t); scale: 1 / the global count of targets, or 1 / the sum of their weights."""

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


def scalars(config: TrainConfig, step: int, total: int, targets: float) -> Scalars:
    """Those of update `step` (from 0) of `total`. targets: of the whole global batch, or the sum of their weights. Of Adafactor
    beta2 grows with the steps, 1 - t^-0.8."""
    beta2 = config.beta2 if config.optimizer == "adamw" else 1 - (step + 1) ** -0.8
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


def learning_rate(config: TrainConfig, step: int, total: int) -> float:
    """Linear warm-up over `warmup_ratio` of the steps, then the schedule, down to 0 after the last."""
    peak = config.learning_rate * config.global_batch / (config.learning_rate_batch or config.global_batch)
    warmup = math.ceil(total * config.warmup_ratio)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * SCHEDULES[config.schedule]((step - warmup) / max(1, total - warmup), config.decay_ratio)


def _stable_then_decay(done: float, decay: float) -> float:
    return 1.0 if done < 1 - decay else (1 - done) / decay


SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "constant": lambda done, decay: 1.0,
    "linear": lambda done, decay: 1 - done,
    "cosine": lambda done, decay: (1 + math.cos(math.pi * done)) / 2,
    "warmup_stable_decay": _stable_then_decay,
}
"""The share of the peak that is left when a share `done` of the steps after warm-up is done."""


def state_shapes(optimizer: str, shape: Shape) -> dict[str, Shape]:
    """Prefix -> shape of what the optimizer keeps of a parameter of `shape`."""
    if optimizer == "adamw":
        return {FIRST: shape, SECOND: shape}
    return {ROW: shape[:-1], COLUMN: (*shape[:-2], shape[-1])} if len(shape) > 1 else {SECOND: shape}


def decays(shape: tuple[int, ...]) -> bool:
    return len(shape) > 1


def clipped(norm: Tensor, max_norm: Tensor) -> Tensor:
    """The factor that brings gradients of `norm` down to `max_norm`; 1 if they are below."""
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


def adamw(weight: Tensor, first: Tensor, second: Tensor, *, gradient: Tensor, at: Sequence[Any]) -> tuple[Tensor, ...]:
    """One update, out of place: (weight, first, second moment). at: the `Scalars` as device tensors."""
    s = Scalars(*at)
    first = first * s.beta1 + gradient * s.fresh1
    second = second * s.beta2 + gradient * gradient * s.fresh2
    step = first / (second.sqrt() / s.correction2 + s.eps)
    decay = s.lr * s.weight_decay if decays(tuple(weight.shape)) else 0.0
    return weight - decay * weight - s.lr / s.correction1 * step, first, second
