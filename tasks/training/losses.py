"""What training minimises: the user's loss, else the task's own, else the cross entropy, with smoothed labels and weighted
classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.targets import TargetKind
from trnflow.tasks.training.batches.sampler import IGNORED
from trnflow.tasks.training.config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor


def loss_sum_of(kind: Kind) -> Callable[..., Tensor]:
    """Return the loss of a task, summed over all targets; called as `loss_sum`."""
    return kind.loss_sum if isinstance(kind, TargetKind) and not kind.per_position else loss_sum


def training_loss(config: TrainConfig, kind: Kind) -> Callable[..., Tensor]:
    """Return the loss that training minimises, called as `loss_sum`: the user's, or the task's."""
    return config.loss_function or loss_sum_of(kind)


def hits_of(kind: Kind, logits: Tensor, targets: Tensor) -> Tensor:
    """Count a task's right predictions, as a float32 scalar; 0 where it counts none."""
    return logits.new_zeros(()) if kind.target_type == "float32" else correct(logits, targets)


def reads_rows(config: TrainConfig, kind: Kind) -> bool:
    """Return whether evaluations return each row's logits: `best_metric` is computed of rows."""
    sums = ("eval_loss", "eval_accuracy") if kind.one_class else ("eval_loss",)
    return config.keeps_best and kind.per_row and not kind.pairs and config.best_metric not in sums


def with_logits(scores: Tensor, logits: Tensor, replica: int, replicas: int) -> Tensor:
    """Return [*scores, *logits of all replicas' rows], 0 for those of others: summed over replicas, all are there."""
    import torch

    # 0 added to a float changes no bit: the sum over replicas, which is there already, gathers the rows
    mine = logits.float().flatten()
    others = (mine.numel() * replica, mine.numel() * (replicas - 1 - replica))
    return torch.cat([scores, torch.nn.functional.pad(mine, others) if replicas > 1 else mine])


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
