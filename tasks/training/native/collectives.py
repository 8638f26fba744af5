"""All-reduce of many small tensors in few large messages.

Tensors go in order into buckets of about `BUCKET` bytes. Each bucket is one message; all messages are sent without
waiting in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET = 32 << 20  # bytes: large enough for full bandwidth, small compared to a model


def all_reduce(tensors: Sequence[Tensor], group: Any) -> list[Tensor]:
    """Return each tensor's sum over the members of `group`; None: over all ranks."""
    pending = []
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        pending.append((flat, bucket, dist.all_reduce(flat, group=group, async_op=True)))
    sums = []
    for flat, bucket, work in pending:
        work.wait()
        parts = torch.split(flat, [tensor.numel() for tensor in bucket])
        sums += [part.view(tensor.shape) for part, tensor in zip(parts, bucket, strict=True)]
    return sums


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        bucket.append(tensor)
        size += tensor.numel() * tensor.element_size()
        if size >= BUCKET:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
