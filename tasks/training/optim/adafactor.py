"""Adafactor: second moments of a matrix as row and column averages, and no first moments.

As `torch.optim.Adafactor` (Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235): steps relative to the weights'
size, updates clipped to a root mean square of 1. No function changes its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trnflow.tasks.training.optim.optimizer import Scalars, is_decayed

SMALL = 1.1920928955078125e-07  # the machine epsilon of fp32
LEAST_SIZE = 1e-3  # the smallest root mean square used for a parameter; without it, zeros would never change


def adafactor(weight: Tensor, *state: Tensor, gradient: Tensor, at: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return a whole parameter and its state after one update.

    state: Row and column averages, or the second moment of one dimension. at: The fields of `Scalars`, as numbers or
    tensors.
    """
    # four functions, between which the caller of a split parameter sums over the devices
    scalars = Scalars(*at)
    *sums, size = squared_sums(weight, gradient)
    state = update_moments(state, sums, tuple(weight.shape), scalars)
    move = update_direction(state, state[0].mean(-1, keepdim=True), gradient)
    return apply_update(weight, move, size, (move * move).sum(), weight.numel(), scalars), *state


def squared_sums(weight: Tensor, gradient: Tensor) -> list[Tensor]:
    """Return [row sums, column sums] of the gradient's squares, and the sum of the weight's squares."""
    squares = gradient * gradient
    # one dimension has no rows and columns
    sums = [squares.sum(-1), squares.sum(-2)] if gradient.dim() > 1 else [squares]
    return [*sums, (weight * weight).sum()]


def update_moments(
    state: Sequence[Tensor], sums: Sequence[Tensor], shape: tuple[int, ...], at: Scalars
) -> tuple[Tensor, ...]:
    """Return the new row and column averages, or the second moment of one dimension.

    sums: Of the whole parameter, by `squared_sums` without the last. shape: The whole parameter's.
    """
    counts = (shape[-1], shape[-2]) if len(shape) > 1 else (1,)
    return tuple(
        old * at.beta2 + total / count * at.fresh2 for old, total, count in zip(state, sums, counts, strict=True)
    )


def update_direction(state: Sequence[Any], level: Any, gradient: Any) -> Any:
    """Return the gradient divided by the root of its estimated second moment.

    level: [..., 1], the mean of the whole parameter's row averages; unused for one dimension.
    """
    if gradient.dim() == 1:
        estimate = state[0]
    else:
        row, column = state
        estimate = (row / level.clamp(min=SMALL)).unsqueeze(-1) * column.unsqueeze(-2)
    return gradient * estimate.clamp(min=SMALL * SMALL).rsqrt()


def apply_update(weight: Tensor, move: Tensor, size: Tensor, length: Tensor, count: int, at: Scalars) -> Tensor:
    """Return the weight after an update along `move`.

    size, length: Sums of squares of the whole weight and of the whole move.
    """
    decay = at.lr * at.weight_decay if is_decayed(tuple(weight.shape)) else 0.0
    pace = (size / count).sqrt().clamp(min=LEAST_SIZE) / (length / count).sqrt().clamp(min=1.0)
    moved: Tensor = weight - decay * weight - pace * smaller_rate(at.lr, at.t) * move
    return moved


def smaller_rate(lr: Any, t: Any) -> Any:
    """Return the smaller of `lr` and 1 / sqrt(t), of numbers or tensors."""
    if isinstance(t, int | float):
        return min(lr, t**-0.5)
    return t.rsqrt().clamp(max=lr) if isinstance(lr, float) else lr.minimum(t.rsqrt())
