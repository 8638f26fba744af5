"""Small parts of engine native that need no training to be seen."""

from __future__ import annotations

import torch

from tasks.training.native import replica_seed


def draws(seed: int) -> tuple[float, ...]:
    torch.manual_seed(seed)
    return tuple(torch.rand(4).tolist())


def test_no_replica_repeats_the_dropout_of_another_step() -> None:
    assert replica_seed(7, 0) == 7  # one device draws as it always did
    seeds = {replica_seed(step, replica) % 2**32 for step in range(2000) for replica in range(64)}
    assert len(seeds) == 2000 * 64
    assert len({draws(replica_seed(step, replica)) for step in range(20) for replica in range(8)}) == 160
