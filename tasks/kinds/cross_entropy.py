"""Cross entropy, optionally with smoothed labels and weighted classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""The target of a position or row that has none."""


def loss_sum(logits: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
    """Return the cross entropy summed over all targets, as `torch.nn.functional.cross_entropy`.

    Args:
        logits: [..., classes].
        targets: [...], -100 for none.
        weights: fp32 [classes], or None.
        smoothing: Share of the probability spread over all classes.
    """
    import torch

    scores, wanted = logits.flatten(0, -2), targets.flatten().long()
    plain = torch.nn.functional.cross_entropy(scores, wanted, weight=weights, ignore_index=IGNORED, reduction="sum")
    if not smoothing:
        return plain
    # PyTorch's own smoothing brings float64 into the graph
    surprise = -torch.log_softmax(scores, -1)
    each = (surprise if weights is None else surprise * weights).mean(-1)
    uniform = torch.where(wanted != IGNORED, each, torch.zeros_like(each)).sum()
    return (1 - smoothing) * plain + smoothing * uniform


def correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Count the targets whose logit is the largest, as a float32 scalar."""
    return ((logits.argmax(-1) == targets) & (targets != IGNORED)).float().sum()
