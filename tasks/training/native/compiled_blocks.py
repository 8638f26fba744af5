"""Compile a model's layers by torch.compile, each by itself: layers of one kind share a graph, which takes as long to
compile for many as for one. What lies outside layers, and the loss, runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from trnflow.tasks.training.model.build import checkpointed_layers

MOST_GRAPHS = 256  # of each length as many as numbers of documents, in training and in evaluation


def compile_blocks(model: Any) -> None:
    """Compile the forward pass of each layer, in place, with few graphs a length; beyond MOST_GRAPHS a layer raises.

    Raises ModelError for a model that marks no layers.
    """
    torch._dynamo.config.recompile_limit = MOST_GRAPHS
    # PyTorch would go on eagerly without a word
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    layers = set(checkpointed_layers(model, setting="compile"))
    for name, layer in model.named_modules():
        if layer in layers:
            # the forward pass alone: hooks of FSDP gather and free weights around it
            layer.forward = _named(name, torch.compile(layer.forward, dynamic=False))


def _named(block: str, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that adds the block's name to an error."""

    @wraps(compiled)
    def forward(*inputs: Any, **options: Any) -> Any:
        try:
            return compiled(*inputs, **options)
        except RuntimeError as error:
            error.block = block  # type: ignore[attr-defined]
            raise

    return forward
