"""Attention by documents, by rows and by blocks says what transformers' own says under a mask."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.toys import BERT, LLAMA, first_rows, packed_classes, packed_lm, scratch
from trnflow.tasks.errors import ModelError, TrnflowError
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.model.attention import (
    attend_documents,
    attend_heads,
    attend_rows,
    attend_varlen,
    attention_kind,
    bounds_of,
    document_bounds,
    document_lengths,
    has_varlen,
    with_attention,
)
from trnflow.tasks.training.model.build import build, logits_of

NATIVE = TrainConfig(engine="native")
HIDDEN = torch.finfo(torch.float32).min


def segments(rows: list[list[int]], length: int) -> torch.Tensor:
    """rows: sizes of the documents; what is left is padding."""
    found = np.zeros((len(rows), length), np.int32)
    for row, sizes in enumerate(rows):
        found[row, : sum(sizes)] = np.repeat(np.arange(len(sizes)) + 1, sizes)
    return torch.from_numpy(found)


def masked(query, key, value, ids, scale=None):
    order = torch.arange(ids.shape[1])
    seen = (ids[:, :, None] == ids[:, None, :]) & (order[:, None] >= order[None])
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    mask = torch.where(seen, 0.0, HIDDEN)[:, None]
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale).transpose(
        1, 2
    )


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(1, 6), min_size=0, max_size=4), min_size=1, max_size=4),
    padding=st.integers(0, 3),
    heads=st.sampled_from([(4, 4), (4, 2), (2, 1)]),
)
def test_documents_are_what_a_mask_gives(rows: list[list[int]], padding: int, heads: tuple[int, int]) -> None:
    length = max(map(sum, rows)) + padding or 1
    ids = segments(rows, length)
    torch.manual_seed(0)
    shapes = [(len(rows), count, length, 8) for count in (heads[0], heads[1], heads[1])]
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    found, _ = attend_documents(None, *tensors, None, scaling=0.3, documents=document_lengths(ids))
    wanted = masked(*tensors, ids, 0.3)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
    ours, theirs = (torch.autograd.grad((out**2).sum(), tensors) for out in (found, wanted))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(not has_varlen(), reason="this torch has no varlen_attn")
@pytest.mark.parametrize("rows", [[[7], [5]], [[4, 3], [2, 1, 5]]], ids=str)
def test_varlen_is_what_documents_give(rows: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of one document is computed here as on a GPU; of several the kernel, which the CPU lacks, is stood in for."""

    def stand_in(query, key, value, bounds, same, longest, as_long, *, scale, window_size, enable_gqa):
        assert bounds is same and window_size == (-1, 0) and enable_gqa and longest == as_long
        return attend_documents(
            None, *(t.transpose(0, 1)[None] for t in (query, key, value)), None, 0.0, scale, bounds.diff().tolist()
        )[0][0]

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", stand_in)
    ids = segments(rows, 8)
    torch.manual_seed(0)
    tensors = [torch.randn(2, heads, 8, 8) for heads in (4, 2, 2)]
    bounds = bounds_of(SimpleNamespace(windowed=False), ids)
    assert len(bounds) == (0 if len(rows[0]) == 1 else 65)
    found, _ = attend_varlen(None, *tensors, None, scaling=0.3, documents=bounds)
    wanted, _ = attend_documents(None, *tensors, None, 0.0, 0.3, document_lengths(ids))
    torch.testing.assert_close(found[ids != 0], wanted[ids != 0])


def test_documents_of_rows_that_begin_as_the_last_one_ended() -> None:
    assert document_lengths(segments([[2, 1], [3], []], 3)) == [2, 1, 3, 3]


def test_rows_drop_what_they_should() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, 4, 16, 8) for _ in range(3)]
    mask = torch.zeros(2, 1, 1, 16)
    mask[0, ..., 9:] = HIDDEN
    module = SimpleNamespace(is_causal=False, num_key_value_groups=1)
    plain, _ = attend_rows(module, *tensors, mask)
    wanted = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=mask).transpose(1, 2)
    torch.testing.assert_close(plain, wanted)
    drawn = torch.stack([attend_rows(module, *tensors, mask, dropout=0.2)[0] for _ in range(800)])
    assert not torch.equal(drawn[0], drawn[1])
    assert ((drawn.mean(0) - wanted) / (drawn.std(0) / 800**0.5)).abs().max() < 5, "its mean is the plain one"


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_model_s_logits_and_gradients_stay(tmp_path, family: str) -> None:
    packed = packed_lm(tmp_path, rows=4)
    model = scratch(**{**LLAMA, "model_type": family})
    _, columns = first_rows(packed, 4)
    found = []
    for attention in ("sdpa", "auto"):
        config = TrainConfig(engine="native", attention=attention)
        built = with_attention(config, build(model, packed, seed=0, weights=True))
        logits = logits_of(built, *columns)[columns[1] != 0]
        logits.square().mean().backward()
        found.append((logits, {name: p.grad for name, p in built.parameters().items()}))
    assert built.attention == "documents"
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


@settings(max_examples=20, derandomize=True, deadline=None)
@given(rows=st.lists(st.lists(st.integers(1, 6), min_size=0, max_size=40), min_size=1, max_size=4))
def test_bounds_are_where_documents_begin(rows: list[list[int]]) -> None:
    length = max(map(sum, rows)) or 1
    ids = segments(rows, length)
    bounds = document_bounds(ids)
    assert bounds.dtype == torch.int32 and len(bounds) in (65, 129, 257)
    lengths = bounds.diff().tolist()
    while lengths and not lengths[-1]:
        lengths.pop()
    assert lengths == document_lengths(ids)


def test_what_it_can_not_be_used_for_is_refused(tmp_path) -> None:
    packed = packed_classes(tmp_path / "classes")
    with pytest.raises(ModelError, match="attends in both directions"):
        with_attention(
            TrainConfig(engine="native", attention="documents"), build(scratch(**BERT), packed, seed=0, weights=True)
        )
    with pytest.raises(ModelError, match="does not pass on"):
        attend_documents(torch.nn.Linear(1, 1), *[torch.ones(1, 1, 2, 4)] * 3, None)
    for refused in ({}, {"engine": "native", "compile": True}, {"engine": "native", "device": "cuda"}):
        with pytest.raises(ValueError, match="attention=documents is for engine native on device cpu"):
            TrainConfig(attention="documents", **refused)
    for refused in ({}, {"device": "cuda"}, {"dtype": "bfloat16"}):
        with pytest.raises(ValueError, match="attention=varlen is for device cuda with dtype=bfloat16"):
            TrainConfig(engine="native", attention="varlen", **refused)
    config = TrainConfig(engine="native", device="cuda", dtype="bfloat16", attention="varlen")
    dropping = build(scratch(**LLAMA, attention_dropout=0.1), packed_lm(tmp_path / "rows"), seed=0, weights=True)
    wanted = "attention=varlen has no dropout, and the model's attention_dropout"
    with pytest.raises(TrnflowError, match=wanted if has_varlen() else "varlen needs torch 2.11 or later"):
        with_attention(config, dropping)
    assert attention_kind(config.model_copy(update={"attention": "auto"}), dropping) == "sdpa"


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (2, 1)], ids=str)
def test_products_of_heads_are_what_a_mask_gives(heads: tuple[int, int]) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, count, 7, 8) for count in (heads[0], heads[1], heads[1]))
    ids = segments([[3, 4], [5]], 7)
    order = torch.arange(7)
    seen = (ids[:, :, None] == ids[:, None, :]) & (order[:, None] >= order[None])
    module, mask = SimpleNamespace(training=False), torch.where(seen, 0.0, HIDDEN)[:, None]
    for scale in (None, 0.3):
        found, _ = attend_heads(module, query, key, value, mask, scaling=scale)
        torch.testing.assert_close(found, masked(query, key, value, ids, scale))


@pytest.mark.parametrize(("window", "wanted"), [(None, -1), (1, 0), (4, 3)])
def test_a_sliding_window_counts_the_position_itself(
    window: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers lets a position attend to `sliding_window` positions with itself, the kernel to so many before it."""
    asked = []

    def stand_in(query, *_, window_size, **__):
        asked.append(window_size)
        return query

    kernel: Any = ModuleType("torch.nn.attention.varlen")  # which torch has from 2.11 on
    kernel.varlen_attn = stand_in
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", kernel)
    bounds = torch.tensor([0, 8], dtype=torch.int32)
    attend_varlen(None, *[torch.ones(1, 2, 8, 8)] * 3, None, documents=bounds, sliding_window=window)
    assert asked == [(wanted, 0)]
