"""Choose `train.micro_batch: auto`: the largest that fits a device."""

from __future__ import annotations

from collections.abc import Callable

from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.memory.estimate import Memory


def candidates(config: TrainConfig) -> list[TrainConfig]:
    """Return a config for each divisor of a replica's rows, the largest first."""
    share = config.share
    return [config.with_micro_batch(size) for size in range(share, 0, -1) if share % size == 0]


def largest_fitting(
    config: TrainConfig,
    memory_of: Callable[[TrainConfig], Memory | None],
    limit: int | None,
    runs: Callable[[TrainConfig], bool] = lambda config: True,
) -> TrainConfig:
    """Return `config` with the largest fitting micro-batch; the smallest without a test.

    limit: Bytes of a device, or None. runs: Decides alone without estimate or limit.
    """
    if config.micro_batch != "auto":
        return config
    choices = candidates(config)
    for candidate in choices[:-1]:
        memory = memory_of(candidate) if limit is not None else None
        if (memory is None or limit is None or memory.total <= limit) and runs(candidate):
            return candidate
    return choices[-1]
