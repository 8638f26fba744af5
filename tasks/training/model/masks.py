"""Attention masks: which positions of a row each position attends to, for each kind of layer.

Made from segment ids alone: transformers' functions wait for the device and do not keep packed documents apart.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trnflow.tasks.errors import ModelError

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"  # transformers' names
PACKING = ("bfd", "concat")  # values of pack.strategy with which a row may have several documents


def attention_masks(
    config: Any, segment_ids: Tensor, *, causal: bool, dtype: Any, apart: bool = False
) -> Tensor | dict[str, Tensor]:
    """Return the argument `attention_mask`: one mask, or {kind of layer: mask}.

    A mask is [rows, 1, 1 or length, length], added to the scores. config: the text model's. segment_ids: int [rows,
    length]. causal: False attends to the whole row, which must be one segment, or with `apart` to the segment.
    """
    length = segment_ids.shape[1]
    order = torch.arange(length, device=segment_ids.device)
    distance = order[:, None] - order[None, :]
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    both_ways = same if apart else (segment_ids != 0)[:, None, :]
    seen = same & (distance >= 0) if causal else both_ways
    window = window_of(config, length)
    if window is None:
        return _additive_mask(seen, dtype)
    near = seen & (distance < window if causal else distance.abs() <= window)
    masks = {FULL: seen, SLIDING: near}
    kinds = _layer_kinds(config)
    return {kind: _additive_mask(masks[kind], dtype) for kind in kinds} if kinds else _additive_mask(near, dtype)


def window_of(config: Any, length: int) -> int | None:
    """Return the sliding layers' window in positions; None if rows of `length` are not longer."""
    window = getattr(config, "sliding_window", None)
    if window is None or not getattr(config, "use_sliding_window", True) or length <= window:
        return None
    kinds = _layer_kinds(config)
    return int(window) if not kinds or SLIDING in kinds else None


def check_attention(model: Any, lengths: Sequence[int], packed: PackedMeta) -> None:
    """Raise ModelError when no mask here serves the model, as for chunks of attention shorter than the rows."""
    config, name = model.config.get_text_config(), type(model).__name__
    if getattr(config, "use_bidirectional_attention", False):
        raise ModelError(
            f"{name} attends in both directions (use_bidirectional_attention)",
            "choose a model that is trained causally",
        )
    others = set(_layer_kinds(config)) - {FULL, SLIDING}
    chunk = getattr(config, "attention_chunk_size", None)
    if CHUNKED in others and chunk and max(lengths) > chunk:
        raise ModelError(
            f"rows of {max(lengths)} tokens, and {name} attends in chunks of {chunk} (attention_chunk_size), for which there is "
            "no mask here",
            "lower pack.chunk_length to that size",
        )
    if others - {CHUNKED} and packed.get("strategy") in PACKING:
        raise ModelError(
            f"{name} has layers of {', '.join(sorted(others - {CHUNKED}))}, in which no mask keeps packed documents apart",
            "set pack.strategy=pad or bucket",
        )
    # transformers' models that take a mask for each kind check whether they got a dict
    takes_kinds = "dict" in inspect.getsource(type(model.base_model).forward)
    if window_of(config, max(lengths)) is not None and _layer_kinds(config) and not takes_kinds:
        raise ModelError(
            f"rows of {max(lengths)} tokens, and {name} attends to {config.sliding_window} at a time in some layers "
            "(sliding_window), without taking a mask for each kind",
            "lower pack.chunk_length to the window",
        )


def check_sdpa(kind: Any, config: Any) -> None:
    """Raise ModelError when the model's class does not support sdpa."""
    mapped = kind._model_mapping.get(type(config), None)
    if mapped is not None and not getattr(mapped, "_supports_sdpa", True):
        raise ModelError(
            f"{mapped.__name__} has no sdpa attention in transformers, which training here needs",
            "choose a model with sdpa attention, such as Llama, Mistral, Qwen or Gemma 3",
        )


def pools_positions(config: Any) -> bool:
    """Return whether a classifier's head averages over positions."""
    return getattr(config, "classifier_pooling", None) in ("mean", "late")


def mask_below_head(model: Any, *, causal: bool) -> None:
    """Give the layers of a classifier that pools positions the masks of `attention_masks`, in place."""

    def hook(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        dtype = next(model.parameters()).dtype
        masks = attention_masks(model.config, named["attention_mask"], causal=causal, dtype=dtype)
        return given, {**named, "attention_mask": masks}

    # the model is called with segment ids: its head takes them as a padding mask, the layers below need more
    model.base_model.register_forward_pre_hook(hook, with_kwargs=True)


def _layer_kinds(config: Any) -> list[str]:
    """Return the kinds of the model's layers, sorted; [] for none."""
    # a class that does not declare the field ignores it
    declared = "layer_types" in {name for kind in type(config).__mro__ for name in getattr(kind, "__annotations__", ())}
    return sorted(set(config.layer_types)) if declared and config.layer_types else []


def _additive_mask(seen: Tensor, dtype: Any) -> Tensor:
    """Return 0 where attended, else the dtype's lowest number."""
    # finite, so that padding, which attends to padding alone, gives no NaN
    return torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)[:, None]
