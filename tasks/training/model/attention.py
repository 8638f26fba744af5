"""Attention functions of engine native that are faster than transformers', and one for tensor parallelism of engine
xla."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.model.dropout import dropout_mask
from trnflow.tasks.training.shared_types import Built

KNOWN = ("llama", "mistral", "qwen2", "qwen3")
"""Model families that pass `documents` on to their attention, and whose attention it computes."""


def with_attention(config: TrainConfig, built: Built) -> Built:
    """Make the model use the attention that `train.attention` asks for, in place.

    Raises ModelError when "documents" or "flex" is asked for, and the model is not causal or has a sliding window.
    """
    kind = attention_kind(config, built)
    if kind == "sdpa":
        if config.device == "cpu" and not config.compile and built.model.config._attn_implementation == "sdpa":
            _use_attention(built.model, "rows", attend_rows)
        return built
    if not built.causal:
        raise ModelError(
            f"train.attention={kind} is causal, and {type(built.model).__name__} attends in both directions",
            "set train.attention=sdpa",
        )
    if built.windowed:
        raise ModelError(
            f"train.attention={kind} lets a position attend to all positions before it in its document, and "
            f"{type(built.model).__name__} has a sliding window that is shorter than the rows",
            "set train.attention=sdpa",
        )
    if kind == "documents":
        _use_attention(built.model, "documents", attend_documents)
    else:
        built.model.set_attn_implementation("flex_attention")
    return replace(built, attention=kind)


def attention_kind(config: TrainConfig, built: Built) -> str:
    """Return "sdpa", "documents" or "flex"; for "auto" documents on the CPU where the family is known."""
    if config.attention != "auto":
        return config.attention
    # with a mask, a packed row scores all pairs of positions: 22 % of a step at 512 tokens
    quick = config.device == "cpu" and not config.compile and built.causal and not built.windowed
    return "documents" if quick and built.model.config.get_text_config().model_type in KNOWN else "sdpa"


def document_lengths(segments: Tensor) -> list[int]:
    """Return the tokens of each document, row after row. segments: int [rows, length]; a run of padding counts too."""
    rows = torch.arange(len(segments), device=segments.device)[:, None]
    sizes: list[int] = torch.unique_consecutive(segments + rows * (segments.max() + 1), return_counts=True)[1].tolist()
    return sizes


def block_mask(segments: Tensor) -> Any:
    """Return flex_attention's block mask, causal within each document. segments: int [rows, length]."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (segments[row, query] == segments[row, key]) & (query >= key)

    rows, length = segments.shape
    # flex_attention skips blocks of masked pairs; never run
    return create_block_mask(seen, rows, None, length, length, device=segments.device)


def attend_documents(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    documents: list[int] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention within each document, as an attention function of transformers.

    query: [rows, heads, length, width]; key, value: perhaps fewer heads. Returns ([rows, length, heads, width], None).
    Raises ModelError when the model does not pass `documents` on.
    """
    if documents is None:
        raise ModelError(
            f"{type(module).__name__} does not pass on which documents its rows hold", "set train.attention=sdpa"
        )
    if query.device.type != "cpu":  # the CPU's fused kernel takes fewer heads, others' not always
        groups = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(groups, 1) if groups > 1 else tensor for tensor in (key, value))
    rows, heads, length, width = query.shape
    # split and cat are fast in the backward pass; indexing would fill a whole tensor for each document
    flat = [tensor.transpose(1, 2).reshape(rows * length, -1, width) for tensor in (query, key, value)]
    parts = zip(*(torch.split(tensor, documents) for tensor in flat), strict=True)
    return torch.cat([_attend_document(q, k, v, dropout, scaling) for q, k, v in parts]).view(
        rows, length, heads, width
    ), None


def _attend_document(query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float | None) -> Tensor:
    """Compute causal attention over one document: [tokens, heads, width]; of key and value perhaps fewer heads."""
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    attend = torch.nn.functional.scaled_dot_product_attention
    grouped = q.shape[1] > k.shape[1]
    return attend(q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=grouped)[0].transpose(0, 1)


def attend_rows(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers' `sdpa`, with faster dropout on the CPU. Shapes as `attend_documents`."""
    if not dropout or key.shape[1] != query.shape[1] or attention_mask is None or not _is_plain(others):
        return _sdpa(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others)
    # PyTorch has no fused kernel with dropout on the CPU
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = torch.softmax(scores + attention_mask, dim=-1, dtype=torch.float32).to(query.dtype)
    return ((weights * dropout_mask(weights, dropout)) @ value).transpose(1, 2).contiguous(), None


def attend_heads(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers' `sdpa`, by einsum. Shapes as `attend_documents`."""
    if attention_mask is None or not _is_plain(others):
        return _sdpa(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # PyTorch's products merge rows and heads, split over different axes: GSPMD would gather all heads
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * scale + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = torch.nn.functional.dropout(weights, dropout)
    return torch.einsum("bhqk,bhkd->bhqd", weights, value).transpose(1, 2).contiguous(), None


def use_attend_heads(model: Any) -> None:
    """Replace transformers' `sdpa` by `attend_heads`, in place."""
    if model.config._attn_implementation == "sdpa":
        _use_attention(model, "heads", attend_heads)


def _is_plain(others: Mapping[str, Any]) -> bool:
    """Return whether no argument is given that only transformers' own attention handles."""
    return all(others.get(name) is None for name in ("position_bias", "softcap"))


def _sdpa(*tensors: Any, **settings: Any) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    attended: Tensor = sdpa_attention_forward(*tensors, **settings)[0]
    return attended, None


def _use_attention(model: Any, name: str, function: Any) -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(f"trnflow_{name}", function)
    model.config._attn_implementation = f"trnflow_{name}"
