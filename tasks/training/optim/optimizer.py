"""Learning rate schedules, AdamW with decoupled weight decay, and the shapes of both optimizers' states. Adafactor is in
`adafactor`.

All hyperparameters and all numbers that vary from step to step are sent to the device as one small vector. A changed
value therefore never changes the graph (the compiled program of a step). Weight decay does not apply to parameters of
one dimension (biases, norms).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.partition_specs import Shape
from trnflow.tasks.training.shared_types import COLUMN, FIRST_MOMENT, ROW, SECOND_MOMENT

if TYPE_CHECKING:
    from torch import Tensor

INFINITE_NORM = 3e38  # stands for "no clipping": the norm is divided by it, so it must be finite


class Scalars(NamedTuple):
    """The numbers that one update needs: hyperparameters, and what varies from step to step.

    Attributes:
        lr: the learning rate.
        t: the update's number, from 1.
        fresh1, fresh2: 1 - beta1, 1 - beta2.
        beta1, beta2: the decay rates of the first and the second moment (running averages of the gradient and of the
            squared gradient).
        eps: AdamW's epsilon, added to the denominator.
        weight_decay: the setting `train.weight_decay`.
        max_norm: the gradient norm above which gradients are clipped; a huge number if they are never clipped.
        correction1: 1 - beta1^t, AdamW's bias correction of the first moment.
        correction2: sqrt(1 - beta2^t), AdamW's bias correction of the root of the second moment.
        scale: the factor that turns the sum of the losses of the global batch into their mean: 1 / the number of
            targets, or 1 / the sum of their class weights.
    """

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
    """Return the numbers that update `step` (from 0) of `total` needs, such as learning rate and betas.

    targets: the number of targets (positions or rows with a loss) of the global batch, or the sum of their class
    weights. For Adafactor beta2 grows with the steps: 1 - t^-0.8, where t is `step` + 1."""
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
    """Return the learning rate of update `step` (from 0) of `total`.

    The peak is `train.learning_rate`, times global_batch / learning_rate_batch if the latter is set. In a warm-up of W
    = ceil(total x warmup_ratio) updates, update k has rate peak x k / W. After the warm-up, the rate stays at the peak
    with the schedule "constant". With each other schedule the rate falls (with "warmup_stable_decay" only in the last
    `decay_ratio` of the updates after warm-up) and would reach 0 at update `total`. transformers' linear, cosine and
    constant_with_warmup schedules give the same rates."""
    peak = config.learning_rate * config.global_batch / (config.learning_rate_batch or config.global_batch)
    warmup = math.ceil(total * config.warmup_ratio)
    if step < warmup:
        return peak * step / warmup
    return peak * SCHEDULES[config.schedule]((step - warmup) / max(1, total - warmup), config.decay_ratio)


def check_learning_rates(config: TrainConfig, total: int) -> None:
    """Raise ModelError when all of the `total` updates would have learning rate 0, as in a very short run that is all
    warm-up."""
    if any(learning_rate(config, step, total) for step in range(total)):
        return
    raise ModelError(
        f"the learning rate of every update is 0: the run has {total} in all, and warm-up (train.warmup_ratio="
        f"{config.warmup_ratio}) begins at 0",
        "set train.warmup_ratio=0, or train for more updates (train.max_steps, train.epochs)",
    )


def _stable_then_decay(done: float, decay: float) -> float:
    return 1.0 if done < 1 - decay else (1 - done) / decay


SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "constant": lambda done, decay: 1.0,
    "linear": lambda done, decay: 1 - done,
    "cosine": lambda done, decay: (1 + math.cos(math.pi * done)) / 2,
    "warmup_stable_decay": _stable_then_decay,
}
"""{schedule: function}. The function returns the learning rate as a share of the peak. Its arguments: the share of the
steps after warm-up that is done, and `decay_ratio`."""


def state_shapes(optimizer: str, shape: Shape) -> dict[str, Shape]:
    """Return {prefix of the tensor's name in a checkpoint: the tensor's shape} for each tensor of the state that the
    optimizer keeps for a parameter.

    optimizer: "adamw" (first and second moments) or "adafactor" (row and column averages, or the second moment for one
    dimension); shape: the parameter's shape."""
    if optimizer == "adamw":
        return {FIRST_MOMENT: shape, SECOND_MOMENT: shape}
    return {ROW: shape[:-1], COLUMN: (*shape[:-2], shape[-1])} if len(shape) > 1 else {SECOND_MOMENT: shape}


def is_decayed(shape: tuple[int, ...]) -> bool:
    """Return whether weight decay applies to a parameter of this shape: to weights, which have several dimensions, not
    to biases and norms."""
    return len(shape) > 1


def clip_factor(norm: Tensor, max_norm: Tensor) -> Tensor:
    """Return the factor by which gradients are multiplied so that their norm is at most `max_norm`. norm: the norm of
    all gradients together. The factor is 1 if the norm is at most `max_norm`."""
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


def adamw(weight: Tensor, first: Tensor, second: Tensor, *, gradient: Tensor, at: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return (weight, first moment, second moment) of one parameter after one AdamW update; the arguments are not
    changed. weight, first, second: the weight and the moments before the update; gradient: already scaled and
    clipped; at: the fields of `Scalars` (learning rate and other numbers of this update), as device tensors."""
    s = Scalars(*at)
    first = first * s.beta1 + gradient * s.fresh1
    second = second * s.beta2 + gradient * gradient * s.fresh2
    step = first / (second.sqrt() / s.correction2 + s.eps)
    decay = s.lr * s.weight_decay if is_decayed(tuple(weight.shape)) else 0.0
    return weight - decay * weight - s.lr / s.correction1 * step, first, second
