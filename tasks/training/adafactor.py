"""Adafactor: second moments of a matrix by their row and column averages alone, no first moments.

As `torch.optim.Adafactor` computes it (Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235): steps relative to the
weights' own size, updates clipped to a root mean square of 1. Cut into parts where a parameter that is spread over devices
must be summed: `measured`, `moments`, `direction`, `applied`. All out of place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tasks.training.optim import Scalars, decays

if TYPE_CHECKING:
    from torch import Tensor

SMALL = 1.1920928955078125e-07  # of fp32
LEAST_SIZE = 1e-3  # a parameter's root mean square counts as this much at least, or zeros would never move


def adafactor(weight: Tensor, *state: Tensor, gradient: Tensor, at: Sequence[Any]) -> tuple[Tensor, ...]:
    """One update of a whole parameter: (weight, row, column) or, of one dimension, (weight, second moment)."""
    scalars = Scalars(*at)
    *sums, size = measured(weight, gradient)
    state = moments(state, sums, tuple(weight.shape), scalars)
    move = direction(state, state[0].mean(-1, keepdim=True), gradient)
    return applied(weight, move, size, (move * move).sum(), weight.numel(), scalars), *state


def measured(weight: Tensor, gradient: Tensor) -> list[Tensor]:
    """The gradient's squares, summed over the last dimension and over the one before it (of one dimension, as they are); and the
    weight's, over all."""
    squares = gradient * gradient
    sums = [squares.sum(-1), squares.sum(-2)] if gradient.dim() > 1 else [squares]
    return [*sums, (weight * weight).sum()]


def moments(state: Sequence[Tensor], sums: Sequence[Tensor], shape: tuple[int, ...], at: Scalars) -> tuple[Tensor, ...]:
    """shape: the whole parameter's."""
    counts = (shape[-1], shape[-2]) if len(shape) > 1 else (1,)
    return tuple(
        old * at.beta2 + total / count * at.fresh2 for old, total, count in zip(state, sums, counts, strict=True)
    )


def direction(state: Sequence[Any], level: Any, gradient: Any) -> Any:
    """state: what belongs to this part of the gradient; level: the mean of all rows, [..., 1]."""
    if gradient.dim() == 1:
        estimate = state[0]
    else:
        row, column = state
        estimate = (row / level.clamp(min=SMALL)).unsqueeze(-1) * column.unsqueeze(-2)
    return gradient * estimate.clamp(min=SMALL * SMALL).rsqrt()


def applied(weight: Tensor, move: Tensor, size: Tensor, length: Tensor, count: int, at: Scalars) -> Tensor:
    """size, length: squares of the weight and of the move, summed over all of the parameter, which has `count` elements."""
    decay = at.lr * at.weight_decay if decays(tuple(weight.shape)) else 0.0
    pace = (size / count).sqrt().clamp(min=LEAST_SIZE) / (length / count).sqrt().clamp(min=1.0)
    moved: Tensor = weight - decay * weight - pace * least(at.lr, at.t) * move
    return moved


def least(lr: Any, t: Any) -> Any:
    """The smaller of the learning rate and 1 / sqrt(t): numbers, or device tensors."""
    if isinstance(lr, float):
        return min(lr, t**-0.5)
    return lr.minimum(t.rsqrt())
