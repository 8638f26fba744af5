"""Choose the number for `train.micro_batch: auto`: the largest micro batch that fits a device. The gradients of the
other micro batches of a global batch are accumulated.
"""

from __future__ import annotations

from collections.abc import Callable

from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.memory.estimate import Memory


def candidates(config: TrainConfig) -> list[TrainConfig]:
    """Return one config for each number that `micro_batch: auto` may stand for: the divisors of the number of rows that
    a replica (a copy of the model) trains on in each update, the largest first."""
    share = config.share
    return [config.with_micro_batch(size) for size in range(share, 0, -1) if share % size == 0]


def largest_fitting(
    config: TrainConfig,
    memory_of: Callable[[TrainConfig], Memory | None],
    limit: int | None,
    runs: Callable[[TrainConfig], bool] = lambda config: True,
) -> TrainConfig:
    """Return `config` with `micro_batch: auto` (rows in a forward pass) replaced by the largest number that fits the
    device's memory. If no larger number fits, the smallest one (1) is taken without a test. A config without `auto` is
    returned as it is.

    Args:
        memory_of: returns the estimated memory of a candidate (a config with a number), or None without an estimate.
        limit: bytes of memory of a device, or None if unknown.
        runs: returns whether a candidate really runs; called only for candidates whose estimate is not above `limit`.
            Without an estimate or a limit, `runs` alone decides."""
    if config.micro_batch != "auto":
        return config
    found = candidates(config)
    for candidate in found[:-1]:
        memory = memory_of(candidate) if limit is not None else None
        if (memory is None or limit is None or memory.total <= limit) and runs(candidate):
            return candidate
    return found[-1]
