"""The loss: cross entropy, optionally with smoothed labels and weighted classes."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from trnflow.tasks.errors import ConfigError
from trnflow.tasks.training.batches.sampler import IGNORED, Batch, Split
from trnflow.tasks.training.config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from trnflow.tasks.metadata import PackedMeta


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


def class_weights(config: TrainConfig, packed: PackedMeta, train: Split | None) -> tuple[float, ...] | None:
    """Return each class's weight, or None. Raises ConfigError for causal_lm or an unknown label.

    train: None when only graphs are traced.
    """
    wanted, labels = config.class_weights, packed["labels"] or []
    if wanted is None:
        return None
    if packed["task"] != "classification":
        raise ConfigError(
            "train.class_weights is set, and the task causal_lm has no classes", "leave train.class_weights out"
        )
    if wanted == "balanced":
        # graphs depend on whether there are weights, not on their values
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
