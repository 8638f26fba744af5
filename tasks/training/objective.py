"""The loss: cross entropy, optionally with smoothed labels and weighted classes.

The training loss is a mean over a global batch's targets, each weighted by its class; evaluation takes the plain one,
so that settings compare.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.training.batches.sampler import IGNORED, Batch, Split
from trnflow.tasks.training.config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor


def loss_sum(logits: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
    """Return the cross entropy summed over all targets, as `torch.nn.functional.cross_entropy` computes it.

    Args:
        logits: [..., classes].
        targets: [...], -100 for none.
        weights: fp32 [classes], or None.
        smoothing: Share of the probability spread over all classes; ours, because PyTorch's brings float64 into the
        graph.
    """
    import torch

    scores, wanted = logits.flatten(0, -2), targets.flatten().long()
    plain = torch.nn.functional.cross_entropy(scores, wanted, weight=weights, ignore_index=IGNORED, reduction="sum")
    if not smoothing:
        return plain
    surprise = -torch.log_softmax(scores, -1)
    each = (surprise if weights is None else surprise * weights).mean(-1)
    uniform = torch.where(wanted != IGNORED, each, torch.zeros_like(each)).sum()
    return (1 - smoothing) * plain + smoothing * uniform


def correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Count the targets whose logit is the largest, as a float32 scalar. logits: [..., classes]; targets: [...], -100
    for none."""
    return ((logits.argmax(-1) == targets) & (targets != IGNORED)).float().sum()


def class_weights(config: TrainConfig, packed: Meta, train: Split | None) -> tuple[float, ...] | None:
    """Return each class's weight, or None. "balanced" is rows / (classes x rows of the class); 1 without rows.

    train: None when only graphs are traced. Raises ConfigError for the task causal_lm or an unknown label.
    """
    wanted, labels = config.class_weights, packed["labels"]
    if wanted is None:
        return None
    if packed["task"] != "classification":
        raise ConfigError(
            "train.class_weights is set, and the task causal_lm has no classes", "leave train.class_weights out"
        )
    if wanted == "balanced":
        counts = train.class_counts(len(labels)) if train else [1] * len(labels)
        return tuple(sum(counts) / (len(labels) * count) if count else 1.0 for count in counts)
    for name in wanted:
        if name not in labels:
            near = difflib.get_close_matches(name, labels, n=1)
            fix = f"did you mean {near[0]}?" if near else f"the labels are {', '.join(labels)}"
            raise ConfigError(f"train.class_weights names {name!r}, which is not a label of these rows", fix)
    return tuple(float(wanted.get(label, 1.0)) for label in labels)


def target_weight(batch: Batch, weights: tuple[float, ...] | None) -> float:
    """Return the sum of the targets' class weights, by which the loss is divided."""
    if weights is None:
        return batch.supervised
    import numpy as np

    return float(np.array(weights)[batch.targets[batch.targets != IGNORED]].sum())
