"""Attention masks: which positions of a row each position attends to, for each kind of layer of the model.

Some models do not attend to the whole row. Mistral attends to the last `sliding_window` positions in all layers, Gemma
3 and ModernBERT in some layers (`config.layer_types`). Gemma 3 and ModernBERT take one mask for each kind of layer.
Masks are computed here, not by transformers, whose functions wait for the device and do not keep packed documents
apart. Masks are made from the segment ids alone: the number of each position's document in its row, 0 for padding."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"  # transformers' names
PACKING = ("bfd", "concat")  # values of pack.strategy with which a row may have several documents


def attention_masks(config: Any, segment_ids: Tensor, *, causal: bool, dtype: Any) -> Tensor | dict[str, Tensor]:
    """Return the argument `attention_mask` of a model: one mask, or {kind of layer: its mask} when rows are longer
    than the window of sliding layers and the model's config lists the kinds of its layers.

    A mask is a tensor [rows, 1, 1 or length, length] of `dtype` that is added to the scores: 0 where a position
    attends, else the lowest number. config: the (text) model's; segment_ids: int [rows, length], the number of each
    position's segment (a document of a packed row), 0 is padding; causal: True: each position attends to its segment
    up to itself; False: to the whole row, which must be one segment."""
    import torch

    length = segment_ids.shape[1]
    order = torch.arange(length, device=segment_ids.device)
    distance = order[:, None] - order[None, :]
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    seen = same & (distance >= 0) if causal else (segment_ids != 0)[:, None, :]
    window = window_of(config, length)
    if window is None:
        return _additive_mask(seen, dtype)
    near = seen & (distance < window if causal else distance.abs() <= window)
    masks = {FULL: seen, SLIDING: near}
    kinds = _layer_kinds(config)
    return {kind: _additive_mask(masks[kind], dtype) for kind in kinds} if kinds else _additive_mask(near, dtype)


def window_of(config: Any, length: int) -> int | None:
    """Return the window of the model's sliding layers in positions, or None if the window has no effect.

    The window has no effect when the model has no sliding layers, or when rows of `length` are not longer than the
    window. config: the text model's."""
    window = getattr(config, "sliding_window", None)
    if window is None or not getattr(config, "use_sliding_window", True) or length <= window:
        return None
    kinds = _layer_kinds(config)
    return int(window) if not kinds or SLIDING in kinds else None


def check_attention(model: Any, lengths: Sequence[int], packed: Meta) -> None:
    """Raise ModelError when trnflow can make no attention mask for the model, for example because the model attends
    only within stretches of positions that are shorter than the rows.

    lengths: the lengths of the rows in tokens; packed: the metadata of the rows."""
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
    if window_of(config, max(lengths)) is not None and _layer_kinds(config) and not _takes_mask_by_kind(model):
        raise ModelError(
            f"rows of {max(lengths)} tokens, and {name} attends to {config.sliding_window} at a time in some layers "
            "(sliding_window), without taking a mask for each kind",
            "lower pack.chunk_length to the window",
        )


def check_sdpa(kind: Any, config: Any) -> None:
    """Raise ModelError when the class that transformers' auto class `kind` would build for `config` does not support
    sdpa (PyTorch's scaled_dot_product_attention), which training uses."""
    mapped = kind._model_mapping.get(type(config), None)
    if mapped is not None and not getattr(mapped, "_supports_sdpa", True):
        raise ModelError(
            f"{mapped.__name__} has no sdpa attention in transformers, which training here needs",
            "choose a model with sdpa attention, such as Llama, Mistral, Qwen or Gemma 3",
        )


def pools_positions(config: Any) -> bool:
    """Return whether a classifier's head averages over the positions of a row. Such a head needs a padding mask of its
    own, [rows, length]."""
    return getattr(config, "classifier_pooling", None) in ("mean", "late")


def mask_below_head(model: Any, *, causal: bool) -> None:
    """Change a classifier whose head averages over the positions of a row (`pools_positions`), in place: its layers
    then use the masks of `attention_masks`, and its head gets a padding mask.

    The caller passes the segment ids (the number of each position's document, 0: padding) as the model's
    `attention_mask`. The head uses the segment ids as a padding mask. A hook on the layers below the head computes the
    layers' masks from the segment ids. causal: as in `attention_masks`."""

    def hook(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        dtype = next(model.parameters()).dtype
        masks = attention_masks(model.config, named["attention_mask"], causal=causal, dtype=dtype)
        return given, {**named, "attention_mask": masks}

    model.base_model.register_forward_pre_hook(hook, with_kwargs=True)


def _layer_kinds(config: Any) -> list[str]:
    """Return the kinds of the model's layers, sorted; [] for a config that lists none. A model whose config class
    does not declare `layer_types` ignores that field, so its kinds are [] too."""
    declared = "layer_types" in {name for kind in type(config).__mro__ for name in getattr(kind, "__annotations__", ())}
    return sorted(set(config.layer_types)) if declared and config.layer_types else []


def _takes_mask_by_kind(model: Any) -> bool:
    """Return whether the model takes a dict of masks: transformers' models that do check whether they got a dict."""
    return "dict" in inspect.getsource(type(model.base_model).forward)


def _additive_mask(seen: Tensor, dtype: Any) -> Tensor:
    """Return float [rows, 1, 1 or length, length]: 0 where attended, else the dtype's lowest number. The number is finite, so
    that padding, which attends to padding alone, gives no NaN."""
    import torch

    return torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)[:, None]
