"""Attention of engine native, where transformers' has a quicker equal: over each document alone, and with dropout.

A mask of floats has every pair of a packed row's positions scored, though most pairs are of two documents or look ahead.
`documents` cuts the rows up and lets each document attend to itself, causally; `flex` leaves out the blocks of pairs that are
hidden (PyTorch's flex_attention, cuda alone, which has met no GPU). On the CPU `rows` draws a batch's dropout quickly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tasks.errors import ModelError
from tasks.training.config import TrainConfig
from tasks.training.dropout import noise
from tasks.training.model import Built

if TYPE_CHECKING:
    from torch import Tensor

KNOWN = ("llama", "mistral", "qwen2", "qwen3")
"""Families that hand on what they are called with to their attention, and attend as `documents` does."""


def attending(config: TrainConfig, built: Built) -> Built:
    """`built` with the attention that the config asks for, which its model is set to. ModelError where it can't be."""
    kind = chosen(config, built)
    if kind == "sdpa":
        if config.device == "cpu" and not config.compile and built.model.config._attn_implementation == "sdpa":
            _set(built.model, "rows", attend_rows)
        return built
    if not built.causal:
        raise ModelError(
            f"train.attention={kind} is causal, and {type(built.model).__name__} sees both ways",
            "set train.attention=sdpa",
        )
    if kind == "documents":
        _set(built.model, "documents", attend_documents)
    else:
        built.model.set_attn_implementation("flex_attention")
    return replace(built, attention=kind)


def chosen(config: TrainConfig, built: Built) -> str:
    if config.attention != "auto":
        return config.attention
    quick = config.device == "cpu" and not config.compile and built.causal
    return "documents" if quick and built.model.config.get_text_config().model_type in KNOWN else "sdpa"


def documents_of(segments: Tensor) -> list[int]:
    """int [rows, length] -> tokens of each run of one segment, row after row; padding is a run, too."""
    import torch

    rows = torch.arange(len(segments), device=segments.device)[:, None]
    sizes: list[int] = torch.unique_consecutive(segments + rows * (segments.max() + 1), return_counts=True)[1].tolist()
    return sizes


def blocks_of(segments: Tensor) -> Any:
    """flex_attention's mask, from int [rows, length]: causal, within a segment."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (segments[row, query] == segments[row, key]) & (query >= key)

    rows, length = segments.shape
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
    """query: [rows, heads, length, width], key and value may have fewer heads -> [rows, length, heads, width]. documents: see
    `documents_of`."""
    import torch

    if documents is None:
        raise ModelError(
            f"{type(module).__name__} does not hand on which documents its rows hold", "set train.attention=sdpa"
        )
    groups = query.shape[1] // key.shape[1]
    whole = [query, *(tensor.repeat_interleave(groups, 1) if groups > 1 else tensor for tensor in (key, value))]
    rows, heads, length, width = query.shape
    # splitting and joining have backward passes that touch each element once; indexing's would fill a tensor a document
    flat = [tensor.transpose(1, 2).reshape(rows * length, heads, width) for tensor in whole]
    parts = zip(*(torch.split(tensor, documents) for tensor in flat), strict=True)
    return torch.cat([_alone(q, k, v, dropout, scaling) for q, k, v in parts]).view(rows, length, heads, width), None


def _alone(query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float | None) -> Tensor:
    """[tokens, heads, width] each, and so is what it returns."""
    import torch

    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, dropout_p=dropout, is_causal=True, scale=scaling)[0].transpose(0, 1)


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
    """As transformers' `sdpa`, which on the CPU has no kernel with dropout either."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not dropout or key.shape[1] != query.shape[1] or attention_mask is None:
        found: Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )[0]
        return found, None
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = torch.softmax(scores + attention_mask, dim=-1, dtype=torch.float32).to(query.dtype)
    return ((weights * noise(weights, dropout)) @ value).transpose(1, 2).contiguous(), None


def _set(model: Any, name: str, function: Any) -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(f"trnflow_{name}", function)
    model.config._attn_implementation = f"trnflow_{name}"
