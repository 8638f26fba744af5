"""Many small tensors in few messages come back each with its own shape and numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from trnflow.tasks.training.native import collectives


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("bucket", "messages"), [(1, 4), (48, 2), (1 << 20, 1)])
def test_each_tensor_comes_back(alone: None, monkeypatch: pytest.MonkeyPatch, bucket: int, messages: int) -> None:
    monkeypatch.setattr(collectives, "BUCKET", bucket)
    given = [
        torch.arange(6.0).view(2, 3),
        torch.tensor(7.0),
        torch.ones(5),
        torch.arange(8.0).view(2, 2, 2).transpose(0, 2),
    ]
    assert len([*collectives._buckets(given)]) == messages
    found = collectives.all_reduce(given, None)
    assert [tensor.tolist() for tensor in found] == [tensor.tolist() for tensor in given]
