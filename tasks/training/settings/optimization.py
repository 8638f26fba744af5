"""Settings: the optimizer, and how long and how fast it trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trnflow.tasks.config import GRAPH, ORDERED, WHEN_SET, BatchRows, NonNegative, Positive, PositiveCount
from trnflow.tasks.training.settings.group import Fraction, Group


class OptimizerSettings(Group):
    """The optimizer. One of the groups of settings below `train:`."""

    optimizer: Annotated[Literal["adamw", "adamw_8bit", "adafactor"], GRAPH] = "adamw"
    """adamw: AdamW, two moments a parameter, 8 bytes. adamw_8bit: the same in 2 bytes, by bitsandbytes (engine native, data
    parallel without zero1 or fsdp). adafactor: Adafactor, one row and one column of second moments a matrix."""

    weight_decay: NonNegative = 0.01
    """Decoupled weight decay of parameters with at least two dimensions (not biases and norms)."""

    beta1: Fraction = 0.9
    """AdamW: decay of the first moment. Adafactor does not use it."""

    beta2: Fraction = 0.999
    """AdamW: decay of the second moment. Adafactor does not use it."""

    eps: Positive = 1e-8
    """AdamW: added to the square root of the second moment. Adafactor does not use it."""

    ema_decay: Annotated[Fraction | None, GRAPH, WHEN_SET] = None
    """Evaluate and publish an exponential moving average of the weights, of which each update keeps this share, such as 0.999.
    Takes 4 bytes a trained parameter."""

    max_grad_norm: Positive | None = 1.0
    """Gradients are scaled down so that the norm of all together is at most this. null: no clipping."""


class ScheduleSettings(Group):
    """How long training lasts, and the learning rate of each update. One of the groups of settings below `train:`."""

    epochs: PositiveCount | Literal["auto"] = 3
    """Passes over the training rows. `max_steps` overrides it. auto: by rows and classes, found when the rows are packed."""

    max_steps: PositiveCount | None = None
    """The number of updates of the whole training. Default: as many as `epochs` take."""

    learning_rate: Positive | Literal["auto"] = 5e-5
    """The highest learning rate, reached after warm-up. auto: by method, task and the model's width."""

    learning_rate_mapping: Annotated[dict[str, Positive], GRAPH, WHEN_SET, ORDERED] = {}
    """Other highest learning rates of some parts of the model: {parts of names, as in `train.freeze`: rate}; the first that
    fits counts. They follow the schedule too."""

    learning_rate_batch: BatchRows | None = None
    """The global batch that `learning_rate` was chosen for: the rate is scaled linearly to the recipe's global batch. Default: no
    scaling."""

    schedule: Literal["linear", "cosine", "constant", "warmup_stable_decay"] = "linear"
    """The learning rate after warm-up: falls to 0 linearly or as a cosine, stays constant, or stays constant and then falls
    (warmup_stable_decay)."""

    warmup_ratio: Fraction = 0.0
    """The share of all updates in which the learning rate rises linearly from 0."""

    decay_ratio: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Schedule warmup_stable_decay: the share of the updates after warm-up in which the rate falls linearly to 0."""

    def updates(self, steps_per_epoch: int) -> int:
        """Return the number of updates of the whole training. `epochs: auto` must have been replaced
        (`automatic.resolved`)."""
        if self.max_steps:
            return self.max_steps
        assert self.epochs != "auto", "the plan decides what auto is"
        return self.epochs * steps_per_epoch

    @model_validator(mode="after")
    def _check_rate(self) -> ScheduleSettings:
        if self.learning_rate_batch is not None and self.learning_rate == "auto":
            raise ValueError(
                "learning_rate_batch scales a rate that was chosen for that batch, and learning_rate is auto: set learning_rate, "
                "or leave learning_rate_batch out"
            )
        return self
