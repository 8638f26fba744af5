"""What training minimises: cross entropy, if asked for with smoothed labels and weighted classes.

Its mean is over the targets of a global batch, each counted by its class's weight. Evaluation is the plain cross entropy, which
compares from one setting to another.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from tasks.artifact import Meta
from tasks.errors import ConfigError
from tasks.training.batches import IGNORED, Batch, Split
from tasks.training.config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor


def loss_sum(logits: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
    """Summed over the targets that count; a scalar. weights: of each class, fp32."""
    import torch

    return torch.nn.functional.cross_entropy(
        logits.flatten(0, -2),
        targets.flatten().long(),
        weight=weights,
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=smoothing,
    )


def correct(logits: Tensor, targets: Tensor) -> Tensor:
    """How many targets the largest logit hits; a float32 scalar."""
    return ((logits.argmax(-1) == targets) & (targets != IGNORED)).float().sum()


def class_weights(config: TrainConfig, packed: Meta, train: Split | None) -> tuple[float, ...] | None:
    """Of each class, or None where all count alike. packed: the rows' metadata; train: what "balanced" counts (a class without
    rows has weight 1), None while graphs are only traced, which no weight reaches. ConfigError where classes or labels lack."""
    wanted, labels = config.class_weights, packed["labels"]
    if wanted is None:
        return None
    if packed["task"] != "classification":
        raise ConfigError(
            "train.class_weights are of classes, and a causal_lm has none", "leave train.class_weights out"
        )
    if wanted == "balanced":
        counts = train.class_counts(len(labels)) if train else [1] * len(labels)
        return tuple(sum(counts) / (len(labels) * count) if count else 1.0 for count in counts)
    for name in wanted:
        if name not in labels:
            near = difflib.get_close_matches(name, labels, n=1)
            fix = f"did you mean {near[0]}?" if near else f"the labels are {', '.join(labels)}"
            raise ConfigError(f"train.class_weights names {name!r}, which is no label of these rows", fix)
    return tuple(float(wanted.get(label, 1.0)) for label in labels)


def target_weight(batch: Batch, weights: tuple[float, ...] | None) -> float:
    """What the batch's targets count together."""
    if weights is None:
        return batch.supervised
    import numpy as np

    return float(np.array(weights)[batch.targets[batch.targets != IGNORED]].sum())
