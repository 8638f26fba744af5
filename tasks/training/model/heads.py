"""Which parameters belong to a head, and which tensors of a model's files the model that is trained must have a place for.

Heads that a task replaces, and buffers that a model computes itself, are left out without a word; anything else means
that config.json describes another model than the files hold.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from trnflow.tasks.artifact import Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.model_source import UNUSED

if TYPE_CHECKING:
    from trnflow.tasks.kinds.kind import Kind
    from trnflow.tasks.training.batches.sampler import Split
    from trnflow.tasks.training.shared_types import Built

HEADS = ("classifier", "pre_classifier", "score", "pooler", "dropout")
"""Names of the parts of a classifier's head."""
COMPUTED = re.compile(
    r"(^|\.)(position_ids|token_type_ids|inv_freq|masked_bias|(attn|attention)\.bias|num_batches_tracked)$"
)
"""Buffers that older files hold, and that models compute today."""
OTHER_SENSES = re.compile(r"(^|\.)(vision_tower|vision_model|visual|audio_tower|multi_modal_projector|embed_vision)\.")
"""Parts that read images or sounds, of which a language model within the model needs none."""


def in_head(name: str) -> bool:
    """Return whether a parameter or module belongs to a classifier's head."""
    # by name: trained parameters must be known before weights are read
    return any(part in HEADS for part in name.split("."))


def begin_at_means(built: Built, train: Split) -> None:
    """Let a new head begin with outputs near the means of train's targets, of numbers as far apart as these.

    Updates move a bias by the learning rate each: with 3e-4 a score of 2.5, or a label of one row in 30 (a logit of -3.4),
    would take thousands. Until then the weights make up for it, at the cost of what the model knows. Nor could weights grow
    until outputs differ as prices do.
    """
    import torch

    outputs = built.model.config.num_labels
    new = {
        name: value
        for name, value in built.parameters().items()
        if name in built.lacking and value.shape[:1] == (outputs,)
    }
    biases = [value for name, value in new.items() if name.endswith(".bias") and value.dim() == 1]
    weights = [value for name, value in new.items() if name.endswith(".weight") and value.dim() == 2]
    means = partial(train.tag_shares, outputs) if built.kind.per_position else train.target_means
    first = built.kind.first_outputs(means, sum(train.rows.values())) if biases else None
    spread = built.kind.first_spread(train.target_deviations) if weights else None
    with torch.no_grad():
        if first is not None:
            biases[-1].copy_(torch.from_numpy(first))
        if spread is not None:
            weights[-1].mul_(torch.from_numpy(spread)[:, None])


def too_coarse(kind: Kind, train: Split, dtype: str) -> Iterator[str]:
    """Yield a remark where train's numbers differ by less than two steps of the type that training computes in: years, in
    bfloat16, which knows every eighth of them."""
    import numpy as np
    import torch

    spread = kind.first_spread(train.target_deviations)
    if spread is None:
        return
    means = train.target_means()
    at = int(np.argmax(np.abs(means) / spread))
    step = torch.finfo(getattr(torch, dtype)).eps * abs(means[at])
    if 2 * step > spread[at]:
        yield (
            f"train's numbers lie around {means[at]:.6g} and differ by some {spread[at]:.3g}; train.dtype={dtype} has steps of "
            f"up to {step:.2g} there: predict the difference from {means[at]:.6g}, or set train.dtype=float32"
        )


def refuse_unused(model: Any, names: Collection[str], source: Source) -> None:
    """Raise ModelError if files hold tensors, by name, that are neither used nor known to be left out.

    model: the one that is trained, without values or with them. Does nothing with `model.allow_unused_weights`.
    """
    if UNUSED in source.location:
        return
    ignored = [*(model._keys_to_ignore_on_load_unexpected or ())]
    others = sorted(
        name
        for name in names
        if not in_head(name)
        and not COMPUTED.search(name)
        and not OTHER_SENSES.search(name)
        and not any(re.search(pattern, name) for pattern in ignored)
    )
    heads = _heads(model) if others else frozenset[str]()
    others = [name for name in others if name.partition(".")[0] not in heads]
    if others:
        what = "train.warm_start_from" if "warm_start" in source.location else "model.source"
        raise ModelError(
            f"the weights of {what} hold {len(others):,} tensors that {type(model).__name__} does not use, such as "
            f"{others[0]}",
            "correct config.json or model.overrides, or set model.allow_unused_weights=true to train without them",
        )


def _heads(model: Any) -> frozenset[str]:
    """Return the names of what transformers' classes for this configuration put beside the body."""
    import torch
    from transformers import PreTrainedModel

    heads: set[str] = set()
    classes: list[Any] = list(vars(sys.modules[type(model).__module__]).values())
    for built_by in classes:
        if isinstance(built_by, type) and issubclass(built_by, PreTrainedModel):
            # a class that refuses this configuration is none whose files these are
            with suppress(Exception), torch.device("meta"):
                built = cast(Any, built_by)._from_config(model.config)
                if built.base_model is not built:
                    heads |= {part for part, _ in built.named_children()} - {built.base_model_prefix}
    return frozenset(heads)
