"""All-reduce, reduce-scatter and all-gather of many small tensors in few large messages.

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


def reduce_scatter(tensors: Sequence[Tensor], dimensions: Sequence[int], group: Any) -> list[Tensor]:
    """Sum each tensor over the group's members, cut the sums evenly along `dimensions`, and return this member's parts.

    The number of members must divide each dimension.
    """
    pieces = [_chunks(tensor, dimension, group) for tensor, dimension in zip(tensors, dimensions, strict=True)]
    pending = []
    for bucket in _buckets(pieces):
        sent = torch.stack([torch.cat([part.reshape(-1) for part in mine]) for mine in zip(*bucket, strict=True)])
        received = torch.empty_like(sent[0])
        work = dist.reduce_scatter_tensor(received, sent.view(-1), group=group, async_op=True)
        pending.append((received, sent, bucket, work))
    sums = []
    for received, _, bucket, work in pending:
        work.wait()
        parts = torch.split(received, [chunks[0].numel() for chunks in bucket])
        sums += [part.view(chunks[0].shape) for part, chunks in zip(parts, bucket, strict=True)]
    return sums


def all_gather(parts: Sequence[Tensor], wholes: Sequence[Tensor], dimensions: Sequence[int], group: Any) -> None:
    """Write into `wholes` what the group's members hold in parts, cut along `dimensions`."""
    targets = [_chunks(whole, dimension, group) for whole, dimension in zip(wholes, dimensions, strict=True)]
    # converted before they are sent: bf16 weights are half the bytes of their fp32 masters
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


def _buckets(tensors: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the tensors, or tuples of a tensor's parts, in buckets."""
    bucket: list[Any] = []
    size = 0
    for entry in tensors:
        parts = entry if isinstance(entry, tuple) else (entry,)
        bucket.append(entry)
        size += sum(part.numel() * part.element_size() for part in parts)
        if size >= BUCKET:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
