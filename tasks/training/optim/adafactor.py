"""Adafactor: an optimizer that stores a matrix's second moments as row and column averages, and no first moments.

Computed as in `torch.optim.Adafactor` (Shazeer and Stern 2018, https://arxiv.org/abs/1804.04235): steps are relative to
the size of the weights, and updates are clipped to a root mean square of 1. An update consists of four functions
(`squared_sums`, `update_moments`, `update_direction`, `apply_update`): if a parameter is split over devices, the caller
sums over the devices between two of these functions. No function changes its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trnflow.tasks.training.optim.optimizer import Scalars, is_decayed

if TYPE_CHECKING:
    from torch import Tensor

SMALL = 1.1920928955078125e-07  # the machine epsilon of fp32
LEAST_SIZE = 1e-3  # the smallest root mean square used for a parameter; without it, zeros would never change


def adafactor(weight: Tensor, *state: Tensor, gradient: Tensor, at: Sequence[Any]) -> tuple[Tensor, ...]:
    """Compute one update of the optimizer Adafactor for a whole parameter (not split over devices). Returns the new
    values of the parameter and of the optimizer's state: (weight, row averages, column averages), or (weight, second
    moment) for a parameter of one dimension. The arguments are not changed.

    state: the row and column averages of the squared gradients, or the second moment, before the update; gradient: of
    the parameter's shape; at: the fields of `Scalars` (learning rate and other numbers of this update), as numbers or
    device tensors."""
    scalars = Scalars(*at)
    *sums, size = squared_sums(weight, gradient)
    state = update_moments(state, sums, tuple(weight.shape), scalars)
    move = update_direction(state, state[0].mean(-1, keepdim=True), gradient)
    return apply_update(weight, move, size, (move * move).sum(), weight.numel(), scalars), *state


def squared_sums(weight: Tensor, gradient: Tensor) -> list[Tensor]:
    """Return sums of squares that Adafactor needs of one device's part of a parameter: [row sums, column sums, the sum
    of the weight's squares].

    Row sums are the gradient's squares summed over the last dimension, column sums the same squares summed over the
    dimension before it. A parameter of one dimension has no such sums: the result is then [the gradient's squares, the
    sum of the weight's squares]."""
    squares = gradient * gradient
    sums = [squares.sum(-1), squares.sum(-2)] if gradient.dim() > 1 else [squares]
    return [*sums, (weight * weight).sum()]


def update_moments(
    state: Sequence[Tensor], sums: Sequence[Tensor], shape: tuple[int, ...], at: Scalars
) -> tuple[Tensor, ...]:
    """Return Adafactor's new second moments (running averages of the squared gradients): row and column averages, or
    for one dimension the second moment of each element.

    Args:
        state: the second moments before the update.
        sums: the result of `squared_sums` for the whole parameter (summed over devices if it is split), without the
            last entry.
        shape: the shape of the whole parameter.
        at: the numbers of this update, of which beta2 and 1 - beta2 are used.
    """
    counts = (shape[-1], shape[-2]) if len(shape) > 1 else (1,)
    return tuple(
        old * at.beta2 + total / count * at.fresh2 for old, total, count in zip(state, sums, counts, strict=True)
    )


def update_direction(state: Sequence[Any], level: Any, gradient: Any) -> Any:
    """Return the direction of Adafactor's update, shaped as `gradient`: the gradient divided by the root of its
    estimated second moment.

    gradient: of one device's part of the parameter; state: the row and column averages of that part, or the second
    moment for one dimension; level: [..., 1], the mean of the whole parameter's row averages (not used for one
    dimension)."""
    if gradient.dim() == 1:
        estimate = state[0]
    else:
        row, column = state
        estimate = (row / level.clamp(min=SMALL)).unsqueeze(-1) * column.unsqueeze(-2)
    return gradient * estimate.clamp(min=SMALL * SMALL).rsqrt()


def apply_update(weight: Tensor, move: Tensor, size: Tensor, length: Tensor, count: int, at: Scalars) -> Tensor:
    """Return the weight after Adafactor's update; the argument is not changed. move: the direction, from
    `update_direction`.

    size: the sum of squares of the whole parameter's weight; length: the sum of squares of the whole
    direction; count: the number of elements of the whole parameter; at: the numbers of this update, such as the
    learning rate."""
    decay = at.lr * at.weight_decay if is_decayed(tuple(weight.shape)) else 0.0
    pace = (size / count).sqrt().clamp(min=LEAST_SIZE) / (length / count).sqrt().clamp(min=1.0)
    moved: Tensor = weight - decay * weight - pace * smaller_rate(at.lr, at.t) * move
    return moved


def smaller_rate(lr: Any, t: Any) -> Any:
    """Return Adafactor's learning rate of update `t` (from 1): the smaller of `lr` and 1 / sqrt(t). Works on numbers
    and on device tensors."""
    if isinstance(lr, float):
        return min(lr, t**-0.5)
    return lr.minimum(t.rsqrt())
