"""The learning rate of each update: warm-up, then one of four schedules."""

from __future__ import annotations

import math
from collections.abc import Callable

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.config import TrainConfig

SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "constant": lambda share, decay: 1.0,
    "linear": lambda share, decay: 1 - share,
    "cosine": lambda share, decay: (1 + math.cos(math.pi * share)) / 2,
    "warmup_stable_decay": lambda share, decay: 1.0 if share < 1 - decay else (1 - share) / decay,
}
"""{schedule: (share of the steps after warm-up, `decay_ratio`) -> share of the peak}."""


def learning_rate(config: TrainConfig, step: int, total: int) -> float:
    """Return the learning rate of update `step` (from 0) of `total`, as transformers' schedules."""
    assert config.learning_rate != "auto", "the plan decides what auto is"
    # given for another batch, the rate is scaled with the batch
    peak = config.learning_rate * config.global_batch / (config.learning_rate_batch or config.global_batch)
    warmup = math.ceil(total * config.warmup_ratio)
    # update k of W has peak x k / W; a peak one update early was a mistake, twice
    if step < warmup:
        return peak * step / warmup
    return peak * SCHEDULES[config.schedule]((step - warmup) / max(1, total - warmup), config.decay_ratio)


def check_learning_rates(config: TrainConfig, total: int) -> None:
    """Raise ModelError when all updates would have rate 0: a short run that is all warm-up."""
    if any(learning_rate(config, step, total) for step in range(total)):
        return
    raise ModelError(
        f"the learning rate of every update is 0: the run has {total} in all, and warm-up (train.warmup_ratio="
        f"{config.warmup_ratio}) begins at 0",
        "set train.warmup_ratio=0, or train for more updates (train.max_steps, train.epochs)",
    )
