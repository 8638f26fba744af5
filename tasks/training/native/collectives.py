"""All-reduce of many small tensors in few large messages, and losses of a batch whose rows lie on several ranks.

Tensors go in order into buckets of about `BUCKET` bytes. Each bucket is one message; all messages are sent without
waiting in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.training.world import World

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


def over_ranks(loss_sum: Callable[..., Tensor], kind: Kind, world: World) -> Callable[..., Tensor]:
    """Return the loss as a rank computes it: of a task whose loss is of the whole batch, of all ranks' rows.

    Its gradient is that of this rank's rows; over ranks both sum up to the batch's.
    """
    if not kind.apart or world.groups is None or world.mesh.data == 1:
        return loss_sum
    group = world.groups["data"].get_group()

    def loss(logits: Tensor, targets: Tensor, *given: Any) -> Tensor:
        whole = loss_sum(_gathered(logits, world.data, group), _gathered(targets, world.data, group), *given)
        # each rank computes the same value, and a share of it is its part of the sum
        return whole - whole.detach() * (1 - 1 / world.mesh.data)

    return loss


def _gathered(rows: Tensor, member: int, group: Any) -> Tensor:
    """Return the rows of all members of a group, of which this one's keep their gradient. member: this one's number."""
    parts = [torch.empty_like(rows) for _ in range(group.size())]
    dist.all_gather(parts, rows.detach().contiguous(), group=group)
    return torch.cat([rows if number == member else part for number, part in enumerate(parts)])
