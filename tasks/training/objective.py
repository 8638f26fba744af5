"""The loss: cross entropy, optionally with smoothed labels and weighted classes.

The training loss is a mean over the targets of a global batch, each weighted by its class. Evaluation always takes the
plain cross entropy, so its results can be compared between settings.
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
    """Return the cross entropy summed over all targets (a scalar), as `torch.nn.functional.cross_entropy` computes it.

    Args:
        logits: [..., classes].
        targets: [...], -100 for no target.
        weights: fp32 [classes], the weight of each class, or None.
        smoothing: the share of the probability spread over all classes.

    Smoothing is computed here, because PyTorch's smoothing would bring float64 into the graph.
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
    """Return how many targets are predicted correctly (the target's logit is the largest), as a float32 scalar tensor.

    logits: [..., classes]; targets: [...], -100 for no target."""
    return ((logits.argmax(-1) == targets) & (targets != IGNORED)).float().sum()


def class_weights(config: TrainConfig, packed: Meta, train: Split | None) -> tuple[float, ...] | None:
    """Return the weight of each class in the loss, in the order of the labels, or None when all classes count alike.

    The setting `train.class_weights` gives the weights, or is "balanced": then the weight of a class is rows / (classes
    x rows of the class), counted in the training rows; a class without rows has weight 1. Raise ConfigError when the
    setting is used with the task causal_lm or names an unknown label.

    packed: the metadata of the packed rows; train: the training rows, or None when only graphs are traced, which do not
    depend on the weights."""
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
    """Return the sum of the class weights of the batch's targets, by which the loss is divided; without weights the
    number of targets."""
    if weights is None:
        return batch.supervised
    import numpy as np

    return float(np.array(weights)[batch.targets[batch.targets != IGNORED]].sum())
