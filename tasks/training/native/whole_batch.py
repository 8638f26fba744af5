"""Losses of a whole batch, whose rows lie on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.training.world import World


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
