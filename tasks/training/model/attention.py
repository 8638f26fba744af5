"""Attention functions of engine native that are faster than transformers', and one for tensor parallelism of engine
xla."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from trnflow.tasks.errors import MissingDependency, ModelError
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.model.dropout import dropout_mask
from trnflow.tasks.training.shared_types import Built

LEAST_BOUNDS = 64  # documents of no length cost a GPU next to nothing
KNOWN = ("llama", "mistral", "qwen2", "qwen3")
"""Model families that pass `documents` on to their attention, and whose attention it computes."""


def with_attention(config: TrainConfig, built: Built) -> Built:
    """Make the model use the attention that `train.attention` asks for, in place.

    Raises ModelError when another one than sdpa is asked for, and the model is not causal, or has a sliding window that
    it does not cover.
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
    if built.windowed and kind != "varlen":
        raise ModelError(
            f"train.attention={kind} lets a position attend to all positions before it in its document, and "
            f"{type(built.model).__name__} has a sliding window that is shorter than the rows",
            "set train.attention=sdpa",
        )
    if kind == "varlen" and not has_varlen():
        raise MissingDependency("train.attention=varlen needs torch 2.11 or later", "set train.attention=sdpa")
    if kind == "varlen" and _attention_dropout(built.model):
        raise ModelError(
            "train.attention=varlen has no dropout, and the model's attention_dropout is above 0",
            "set model.config.attention_dropout=0, or train.attention=sdpa",
        )
    _use_attention(built.model, kind, attend_documents if kind == "documents" else _varlen())
    return replace(built, attention=kind)


def attention_kind(config: TrainConfig, built: Built) -> str:
    """Return "sdpa", "documents" or "varlen"; for "auto" the fastest that the device has, where the family is known."""
    if config.attention != "auto":
        return config.attention
    # with a mask, a packed row scores all pairs of positions: 22 % of a step at 512 tokens
    text = built.model.config.get_text_config()
    if not built.causal or text.model_type not in KNOWN:
        return "sdpa"
    if config.device == "cpu":
        return "sdpa" if config.compile or built.windowed else "documents"
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    fits = not size % 8 and size <= 256 and not _attention_dropout(built.model)
    narrow = config.device == "cuda" and config.dtype == "bfloat16"
    return "varlen" if narrow and fits and has_varlen() else "sdpa"


def has_varlen() -> bool:
    """Return whether this torch has attention over documents of any lengths, for CUDA."""
    if find_spec("torch.nn.attention.varlen") is None:
        return False
    from torch.nn.attention.varlen import varlen_attn

    return "window_size" in signature(varlen_attn).parameters  # that of torch 2.10 takes no scale either


def document_lengths(segments: Tensor) -> list[int]:
    """Return the tokens of each document, row after row. segments: int [rows, length]; a run of padding counts too."""
    lengths: list[int] = _counts(segments).tolist()
    return lengths


def bounds_of(built: Built, segments: Tensor) -> Tensor:
    """Return `document_bounds`; an empty tensor where a row is one document, but for a model with a sliding window."""
    alone = not built.windowed and int(segments.max()) <= 1
    return segments.new_zeros(0) if alone else document_bounds(segments)


def document_bounds(segments: Tensor) -> Tensor:
    """Return where documents begin in the flattened rows, then the number of positions: int32 [documents + 1].

    Repeats the last number, so that few different shapes are compiled. segments: as of `document_lengths`.
    """
    ends = _counts(segments).cumsum(0, dtype=torch.int32)
    spare = max(LEAST_BOUNDS, 1 << (len(ends) - 1).bit_length()) - len(ends)
    return torch.cat([ends.new_zeros(1), ends, ends.new_full((spare,), segments.numel())])


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
        raise _not_passed_on(module)
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


def attend_varlen(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    documents: Tensor | None = None,
    sliding_window: int | None = None,
    *,
    says_grouped: bool = True,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention within each document by PyTorch's kernel for CUDA.

    documents: `bounds_of`. says_grouped: Whether the kernel is told that keys have fewer heads. The rest as
    `attend_documents`.
    """
    from torch.nn.attention.varlen import varlen_attn

    if documents is None:
        raise _not_passed_on(module)
    rows, heads, length, width = query.shape
    grouped = heads > key.shape[1]
    if not len(documents):  # what padding at a row's end attends to does not matter
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped).transpose(1, 2), None
    flat = [tensor.transpose(1, 2).reshape(rows * length, -1, width) for tensor in (query, key, value)]
    # a row's length, though documents are shorter: a number that changed would be compiled anew
    bounds = (documents, documents, length, length)
    window = (-1 if sliding_window is None else sliding_window - 1, 0)
    attended = varlen_attn(
        *flat, *bounds, scale=scaling, window_size=window, **({"enable_gqa": grouped} if says_grouped else {})
    )
    return attended.view(rows, length, heads, width), None


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


def _varlen() -> Callable[..., tuple[Tensor, None]]:
    from torch.nn.attention.varlen import varlen_attn

    # torch 2.11 takes fewer heads without a word
    return partial(attend_varlen, says_grouped="enable_gqa" in signature(varlen_attn).parameters)


def _counts(segments: Tensor) -> Tensor:
    rows = torch.arange(len(segments), device=segments.device)[:, None]
    counts: Tensor = torch.unique_consecutive(segments + rows * (segments.max() + 1), return_counts=True)[1]
    return counts


def _attention_dropout(model: Any) -> float:
    return float(getattr(model.config.get_text_config(), "attention_dropout", 0.0) or 0.0)


def _not_passed_on(module: Any) -> ModelError:
    what = f"{type(module).__name__} does not pass on which documents its rows hold"
    return ModelError(what, "set train.attention=sdpa")


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
