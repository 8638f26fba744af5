"""A document in a chunk has the logits that it has alone: nothing leaks through the masks that training builds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.data_stages import new_bench
from tests.training.toys import BERT, DRY, LLAMA, VOCABULARY, packed_classes, packed_lm, scratch
from trnflow.tasks.artifact import Input
from trnflow.tasks.training.batches.sampler import IGNORED, Split, shift_targets
from trnflow.tasks.training.losses import loss_sum
from trnflow.tasks.training.model.build import build, inputs_of, logits_of
from trnflow.tasks.training.shared_types import Built

CHUNK = 24
FEW = settings(derandomize=True, max_examples=8, deadline=None)
TOLERANCE = {"rtol": 0.0, "atol": 1e-5}
lengths = st.lists(st.integers(2, CHUNK), min_size=1, max_size=8)
attention = pytest.mark.parametrize("attention", ["eager", "sdpa"])


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Built:
    return eval_mode(build(scratch(**LLAMA), packed_lm(tmp_path_factory.mktemp("llama")), seed=0, weights=True))


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Built:
    packed = packed_classes(tmp_path_factory.mktemp("bert"))
    return eval_mode(build(scratch(**BERT, **DRY), packed, seed=0, weights=True))


def eval_mode(built: Built) -> Built:
    built.model.eval()
    with torch.no_grad():  # fresh weights are so small that every logit is almost 0
        for parameter in built.model.parameters():
            parameter.mul_(4.0) if parameter.ndim > 1 else None
    return built


def packed_documents(root: Path, task: str, sizes: list[int], seed: int, **pack: object) -> Input:
    folder, draw = root / "tokens", np.random.default_rng(seed)
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "train").mkdir()
    np.save(folder / "train/input_ids.npy", draw.integers(3, VOCABULARY, sum(sizes)).astype(np.int32))
    np.save(folder / "train/offsets.npy", np.cumsum([0, *sizes], dtype=np.int64))
    np.save(folder / "train/source_row.npy", np.arange(len(sizes)))
    np.save(folder / "train/source_tokens.npy", np.array(sizes, dtype=np.int32))
    np.save(folder / "train/loss_mask.npy", np.ones(sum(sizes), np.uint8))
    np.save(folder / "train/labels.npy", np.zeros(len(sizes), np.int32))
    meta = {"task": task, "labels": None, "splits": {"train": len(sizes)}, "longest": max(sizes), "pad_id": 0}
    tokens = Input(folder, "tokens", {**meta, "dropped": {}}, "sha256:tokens")
    return new_bench(root).packed(tokens, chunk_length=CHUNK, **pack)


def chunks_of(packed: Input) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """input_ids, segment_ids, position_ids of all chunks and, behind them, of one that is padding alone."""
    split = Split(packed, "train")
    (address,) = split.in_order(sum(split.rows.values()) + 1)
    batch = split.read(address)
    assert not batch.segment_ids[-1].any() and (batch.targets[-1] == IGNORED).all()
    return tuple(map(torch.from_numpy, (batch.input_ids, batch.segment_ids, batch.position_ids)))


def alone(built: Built, ids: torch.Tensor) -> torch.Tensor:
    """The logits of one document by itself, as transformers makes them without any mask of ours."""
    return built.model(input_ids=ids[None].long()).logits[0].float()


@attention
@FEW
@given(sizes=lengths, seed=st.integers(0, 9), strategy=st.sampled_from(["bfd", "concat"]))
def test_a_packed_document_has_the_logits_it_has_alone(tmp_path_factory, llama, attention, sizes, seed, strategy):
    llama.model.set_attn_implementation(attention)
    packed = packed_documents(tmp_path_factory.mktemp("packed"), "causal_lm", sizes, seed, strategy=strategy)
    ids, segments, positions = chunks_of(packed)
    with torch.no_grad():
        logits = logits_of(llama, ids, segments, positions)
        assert torch.isfinite(logits).all()
        for row, chunk in enumerate(segments):
            for segment in range(1, int(chunk.max()) + 1):
                here = chunk == segment
                torch.testing.assert_close(logits[row][here], alone(llama, ids[row][here]), **TOLERANCE)


@attention
@FEW
@given(sizes=lengths, seed=st.integers(0, 9))
def test_a_padded_row_has_the_logits_it_has_alone(tmp_path_factory, bert, attention, sizes, seed):
    """Both ways: padding is not seen from either side."""
    bert.model.set_attn_implementation(attention)
    packed = packed_documents(tmp_path_factory.mktemp("packed"), "classification", sizes, seed, strategy="pad")
    ids, segments, positions = chunks_of(packed)
    with torch.no_grad():
        logits = logits_of(bert, ids, segments, positions)
        assert torch.isfinite(logits).all()
        for row, chunk in enumerate(segments[:-1]):
            torch.testing.assert_close(logits[row], alone(bert, ids[row][chunk != 0]), **TOLERANCE)


@attention
def test_another_document_changes_nothing(llama, attention):
    """The same document beside two different neighbours, before it and behind it: the same bits."""
    llama.model.set_attn_implementation(attention)
    segments = torch.tensor([[1] * 8 + [2] * 8 + [3] * 8]).repeat(2, 1)
    positions = torch.arange(8).repeat(2, 3)
    ids = torch.randint(3, VOCABULARY, (2, CHUNK), generator=torch.Generator().manual_seed(0))
    ids[1, 8:16] = ids[0, 8:16]
    with torch.no_grad():
        one, other = logits_of(llama, ids, segments, positions)
    assert torch.equal(one[8:16], other[8:16]) and not torch.equal(one[16:], other[16:])


@attention
def test_padding_alone_gives_no_nan_and_no_gradient(llama, attention):
    llama.model.set_attn_implementation(attention)
    ids = torch.randint(3, VOCABULARY, (2, CHUNK), generator=torch.Generator().manual_seed(0))
    segments = torch.stack([torch.ones(CHUNK, dtype=torch.int64), torch.zeros(CHUNK, dtype=torch.int64)])
    positions = torch.arange(CHUNK).repeat(2, 1) * segments
    targets = torch.from_numpy(shift_targets(np.where(segments > 0, ids, IGNORED), segments.numpy()))

    def gradients(rows: int) -> list[torch.Tensor]:
        llama.model.zero_grad()
        loss_sum(logits_of(llama, ids[:rows], segments[:rows], positions[:rows]), targets[:rows]).backward()
        return [parameter.grad.clone() for parameter in llama.parameters().values()]

    with_padding, without = gradients(2), gradients(1)
    for one, other in zip(with_padding, without, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@attention
def test_the_mask_is_built_before_the_model(llama, bert, attention):
    """4-D and finite, whichever attention reads it: so no model looks for packed rows itself, which would wait for the
    device at every step."""
    segments = torch.tensor([[1, 1, 2, 0]])
    columns = (torch.ones_like(segments), segments, torch.tensor([[0, 1, 0, 0]]))
    for built, rows in ((llama, ["x...", "xx..", "..x.", "...x"]), (bert, ["xxx."])):
        built.model.set_attn_implementation(attention)
        mask = inputs_of(built, *columns)["attention_mask"]
        assert mask.shape == (1, 1, len(rows), 4) and torch.isfinite(mask).all()
        assert ["".join(".x"[int(seen)] for seen in row == 0) for row in mask[0, 0]] == rows
