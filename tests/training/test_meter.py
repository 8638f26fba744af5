"""Rates are of training alone; what isn't known isn't said."""

from __future__ import annotations

import numpy as np
import pytest

from trnflow.tasks.training.batches.sampler import Batch
from trnflow.tasks.training.graphs.flops import mfu
from trnflow.tasks.training.meter import Meters, host_memory


def batch() -> Batch:
    ids = np.zeros((4, 8), np.int32)
    segments, targets = ids + 1, ids.copy()
    segments[:, 6:] = 0
    targets[:, 5:] = -100
    return Batch(8, ids, targets, segments, ids, samples=4)


def test_rates_count_tokens_by_kind() -> None:
    meters = Meters()
    meters.count(batch(), flops=10)
    meters.count(batch(), flops=10)
    meters.whole.start -= 100.0
    meters.add_elsewhere(98.0)  # leaves some two seconds
    rates = meters.whole.rates()
    kinds = ["tokens_per_second", "real_tokens_per_second", "padded_tokens_per_second"]
    assert [rates[name] / rates["samples_per_second"] for name in kinds] == pytest.approx([5, 6, 8])
    assert 0 < rates["samples_per_second"] <= 4.0
    assert (meters.whole.steps, meters.lap.flops) == (2, 20)


def test_utilisation_is_of_known_devices_alone() -> None:
    assert mfu(989e12, "NVIDIA H200", 2) == {"mfu": 0.5}
    assert mfu(835e12, "NVIDIA H200 NVL", 1) == {"mfu": 1.0}
    assert [mfu(35e12, name, 1)["mfu"] for name in ("NVIDIA L4", "Tesla T4")] == [35 / 121, 35 / 65]
    assert mfu(1e12, "NVIDIA L40S", 1) == {}
    assert mfu(95e12, "trn1.2xlarge", 2) == {"mfu": 0.5}
    assert mfu(1e12, "cpu", 1) == mfu(1e12, "NVIDIA GeForce RTX 9090", 1) == {}


def test_memory_is_what_was_touched() -> None:
    before = host_memory()
    held = np.ones(2**26, np.uint8)
    assert host_memory() >= held.nbytes and host_memory() >= before
