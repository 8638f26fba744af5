"""All-reduce, reduce-scatter and all-gather of many small tensors in few large messages.

Tensors go in order into buckets of about `BUCKET` bytes. Each bucket is one message; all messages are sent without
waiting in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

BUCKET = 32 << 20  # bytes: large enough for full bandwidth, small compared to a model


def all_reduce(tensors: Sequence[Tensor], group: Any) -> list[Tensor]:
    """Return the sum of each tensor over all members of the process group `group`; None stands for all processes that
    train together. Small tensors are sent together in large messages."""
    import torch
    import torch.distributed as dist

    pending = []
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        pending.append((flat, bucket, dist.all_reduce(flat, group=group, async_op=True)))
    found = []
    for flat, bucket, work in pending:
        work.wait()
        parts = torch.split(flat, [tensor.numel() for tensor in bucket])
        found += [part.view(tensor.shape) for part, tensor in zip(parts, bucket, strict=True)]
    return found


def reduce_scatter(tensors: Sequence[Tensor], dimensions: Sequence[int], group: Any) -> list[Tensor]:
    """Sum each tensor over the members of the process group, cut the sum evenly, and return the part that belongs to this
    member.

    dimensions: for each tensor the dimension along which the tensor is cut, whose size the number of members must
    divide."""
    import torch
    import torch.distributed as dist

    pieces = [_chunks(tensor, dimension, group) for tensor, dimension in zip(tensors, dimensions, strict=True)]
    pending = []
    for bucket in _buckets(pieces):
        sent = torch.stack([torch.cat([part.reshape(-1) for part in mine]) for mine in zip(*bucket, strict=True)])
        received = torch.empty_like(sent[0])
        work = dist.reduce_scatter_tensor(received, sent.view(-1), group=group, async_op=True)
        pending.append((received, sent, bucket, work))
    found = []
    for received, _, bucket, work in pending:
        work.wait()
        parts = torch.split(received, [chunks[0].numel() for chunks in bucket])
        found += [part.view(chunks[0].shape) for part, chunks in zip(parts, bucket, strict=True)]
    return found


def all_gather(parts: Sequence[Tensor], wholes: Sequence[Tensor], dimensions: Sequence[int], group: Any) -> None:
    """Gather whole tensors from the parts that the members of the process group hold, and write them into `wholes`.

    parts: this member's part of each tensor; dimensions: for each tensor the dimension along which it is cut. Each part
    is sent in the dtype of the whole tensor."""
    import torch
    import torch.distributed as dist

    targets = [_chunks(whole, dimension, group) for whole, dimension in zip(wholes, dimensions, strict=True)]
    sent = [part.to(whole.dtype) for part, whole in zip(parts, wholes, strict=True)]
    pending, at = [], 0
    for bucket in _buckets(sent):
        flat = torch.cat([part.reshape(-1) for part in bucket])
        received = torch.empty((group.size(), flat.numel()), dtype=flat.dtype, device=flat.device)
        work = dist.all_gather_into_tensor(received.view(-1), flat, group=group, async_op=True)
        pending.append((received, flat, bucket, targets[at : at + len(bucket)], work))
        at += len(bucket)
    for received, _, bucket, chunks, work in pending:
        work.wait()
        for member, row in enumerate(received):
            pieces = torch.split(row, [part.numel() for part in bucket])
            for piece, places in zip(pieces, chunks, strict=True):
                places[member].copy_(piece.view(places[member].shape))


def _chunks(tensor: Tensor, dimension: int, group: Any) -> tuple[Tensor, ...]:
    return tensor.chunk(group.size(), dimension)


def _buckets(items: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield `items` in buckets. items: tensors, or tuples with the parts of a tensor."""
    bucket: list[Any] = []
    size = 0
    for item in items:
        parts = item if isinstance(item, tuple) else (item,)
        bucket.append(item)
        size += sum(part.numel() * part.element_size() for part in parts)
        if size >= BUCKET:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
