"""`train.micro_batch: auto`: the largest micro batch that fits, with the same global batch, the rest of it accumulated."""

from __future__ import annotations

from collections.abc import Callable

from tasks.training.config import TrainConfig
from tasks.training.memory import Memory


def candidates(config: TrainConfig) -> list[TrainConfig]:
    """With every micro batch that divides a replica's share, the largest first."""
    share = config.share
    return [config.settled(size) for size in range(share, 0, -1) if share % size == 0]


def fitting(
    config: TrainConfig,
    estimated: Callable[[TrainConfig], Memory | None],
    limit: int | None,
    tried: Callable[[TrainConfig], bool] = lambda config: True,
) -> TrainConfig:
    """`config` with the largest micro batch whose estimate is within `limit` bytes a device and which `tried` finds to run; the
    smallest, when none is. Without a limit, or an estimate, what is tried decides. tried: asked only of what fits by the
    estimate, so it can only lower it."""
    if config.micro_batch != "auto":
        return config
    found = candidates(config)
    for candidate in found[:-1]:
        memory = estimated(candidate) if limit is not None else None
        if (memory is None or limit is None or memory.total <= limit) and tried(candidate):
            return candidate
    return found[-1]
