"""Count a forward pass's FLOPs: two a token and weight, and attention's products. An embedding counts only if it is the
output layer too."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.training.model.lora import unwrapped
from trnflow.tasks.training.shared_types import Built

if TYPE_CHECKING:
    from trnflow.tasks.training.batches.sampler import Batch, Ints


class Costs(NamedTuple):
    """FLOPs of a forward pass for each position, and for each pair of positions of which one attends to the other."""

    position: int
    pair: int


def costs(built: Built) -> Costs:
    """Return a model's costs; a backward pass of all parameters costs twice as many."""
    config = built.model.config.get_text_config()
    width = config.num_attention_heads * (getattr(config, "head_dim", None) or 0) or config.hidden_size
    embeddings = {id(module.weight) for module in built.model.modules() if type(module).__name__ == "Embedding"}
    head = unwrapped(built.model.get_output_embeddings())
    weights = built.numbers - sum(p.numel() for p in built.parameters().values() if id(p) in embeddings)
    if head is not None and id(head.weight) in embeddings:  # a tied head also has a product
        weights += head.weight.numel()
    return Costs(2 * weights, 4 * config.num_hidden_layers * width)


def flops_per_row(built: Built, length: int) -> int:
    """Return the FLOPs of a graph's forward pass over `length` positions, which all attend to all."""
    cost = costs(built)
    return length * (cost.position + cost.pair * length)


def flops_per_batch(cost: Costs, batch: Batch, *, causal: bool) -> int:
    """Return the FLOPs that a forward pass needs: positions attend within their document, in a causal model backwards."""
    segments = batch.segment_ids.clip(max=1) if batch.by_row else batch.segment_ids
    return cost.position * batch.input_ids.size + cost.pair * _pairs(segments, causal=causal)


def _pairs(segments: Ints, *, causal: bool) -> int:
    """Count the pairs. segments: int32 [rows, length], 0 for padding."""
    import numpy as np

    rows, most = len(segments), int(segments.max(initial=0)) + 1
    named = segments + np.arange(rows)[:, None] * most
    sizes = np.bincount(named.ravel(), minlength=rows * most).reshape(rows, most)[:, 1:]
    return int((sizes * (sizes + 1) // 2 if causal else sizes**2).sum())


def mfu(flops_per_second: float, peak: float | None, devices: int) -> Meta:
    """Return {"mfu": measured speed / peak of all devices}; {} where the peak is not known."""
    return {"mfu": flops_per_second / (peak * devices)} if peak else {}
