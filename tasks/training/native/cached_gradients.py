"""Gradients of a loss of the whole batch whose rows pass in parts, for which the memory of one part suffices (GradCache,
https://arxiv.org/abs/2101.06983): each part's vectors without gradients, the loss of all, then each part again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Columns = Sequence[Tensor]


def cached_backward(
    parts: Sequence[Columns],
    vectors_of: Callable[[Columns], Tensor],
    loss_of: Callable[[Tensor], Tensor],
    begin_pass: Callable[[bool], None],
) -> Tensor:
    """Add the gradients of `loss_of` the vectors of all parts, and return the loss. begin_pass: told whether it is the last."""
    # dropout drops the same in both passes
    seeds = torch.randint(1 << 62, (len(parts),)).tolist()
    with torch.no_grad():
        begin_pass(False)
        kept = [_seeded(seed, vectors_of, part) for seed, part in zip(seeds, parts, strict=True)]
    whole = torch.cat(kept).requires_grad_()
    loss = loss_of(whole)
    (gradient,) = torch.autograd.grad(loss, whole)
    gradients = torch.split(gradient, [len(vectors) for vectors in kept])
    for seed, part, own in zip(seeds, parts, gradients, strict=True):
        begin_pass(part is parts[-1])
        _seeded(seed, vectors_of, part).backward(own)  # type: ignore[no-untyped-call]
    return loss.detach()


def _seeded(seed: int, vectors_of: Callable[[Columns], Tensor], part: Columns) -> Tensor:
    torch.manual_seed(seed)
    return vectors_of(part)
