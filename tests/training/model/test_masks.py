"""Models that see a window of the row, in all or some layers: our masks give transformers' own logits, document by document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.run_stage import run_in_turn
from tests.training.toys import LLAMA, first_rows, packed_classes, packed_lm, scratch
from trnflow.tasks.artifact import Input
from trnflow.tasks.errors import ModelError
from trnflow.tasks.evaluation.forward import token_losses
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.model.attention import with_attention
from trnflow.tasks.training.model.build import build, logits_of
from trnflow.tasks.training.shared_types import Built

LENGTH, WINDOW, LAYERS = 32, 5, 4
SMALL: dict[str, Any] = {**LLAMA, "num_hidden_layers": LAYERS, "num_key_value_heads": 2, "sliding_window": WINDOW}
WHOLE = {name: value for name, value in SMALL.items() if name != "sliding_window"}
SOME = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
CAUSAL: dict[str, dict[str, Any]] = {
    "gemma 3": {**SMALL, "model_type": "gemma3_text", "head_dim": 8, "layer_types": SOME},
    "qwen2": {**SMALL, "model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 2},
    "qwen3": {**SMALL, "model_type": "qwen3", "use_sliding_window": True, "layer_types": SOME},
    "olmo3": {**SMALL, "model_type": "olmo3", "layer_types": SOME},
    "ministral": {**SMALL, "model_type": "ministral", "head_dim": 8, "layer_types": SOME},
    "mistral": {**SMALL, "model_type": "mistral"},
    "phi3": {**SMALL, "model_type": "phi3", "pad_token_id": 0},
    "starcoder2": {**SMALL, "model_type": "starcoder2"},
}
MODERNBERT: dict[str, Any] = {
    "model_type": "modernbert", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS,
    "num_attention_heads": 2, "local_attention": 2 * WINDOW, "max_position_embeddings": 64, "cls_token_id": 1,
    "sep_token_id": 2,
}  # fmt: skip


def made(config: dict[str, Any], packed: Input) -> Built:
    built = build(scratch(**config), packed, seed=0, weights=True)
    built.model.eval()
    return built


@pytest.mark.parametrize("name", CAUSAL)
def test_packed_documents_longer_than_the_window_are_as_transformers_has_them(name: str, tmp_path: Path) -> None:
    packed = packed_lm(tmp_path, rows=4, length=LENGTH)
    built = made(CAUSAL[name], packed)
    _, columns = first_rows(packed, 4)
    longest = 0
    with torch.no_grad():
        ours = logits_of(built, *columns)
        for row in range(4):
            for segment in (1, 2):
                here = columns[1][row] == segment
                alone = built.model(input_ids=columns[0][row][here][None].long(), attention_mask=None).logits
                torch.testing.assert_close(ours[row][here], alone[0], rtol=1e-4, atol=1e-5)
                longest = max(longest, int(here.sum()))
        assert longest > WINDOW + 3
        built.model.config.sliding_window = LENGTH
        assert not torch.allclose(logits_of(built, *columns), ours, atol=1e-4), "the window does not matter"


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_modernbert_sees_its_window_each_way(pooling: str, tmp_path: Path) -> None:
    """With heads that read the first position and that average over all."""
    packed = packed_classes(tmp_path, rows=6, lengths=[LENGTH])
    built = made({**MODERNBERT, "classifier_pooling": pooling}, packed)
    _, columns = first_rows(packed, 6)
    with torch.no_grad():
        ours = logits_of(built, *columns)
        plain = made({**MODERNBERT, "classifier_pooling": pooling}, packed).model
        plain.base_model._forward_pre_hooks.clear()
        for row, (ids, segments) in enumerate(zip(columns[0].long(), columns[1], strict=True)):
            alone = plain(input_ids=ids[segments != 0][None]).logits
            torch.testing.assert_close(ours[row], alone[0], rtol=1e-4, atol=1e-5)
        built.model.config.local_attention = 2 * LENGTH
        assert not torch.allclose(logits_of(built, *columns), ours, atol=1e-4), "the window does not matter"


@pytest.mark.parametrize("config", [CAUSAL["gemma 3"], CAUSAL["mistral"], MODERNBERT], ids=lambda c: c["model_type"])
def test_masks_are_made_without_numbers(config: dict[str, Any], tmp_path: Path) -> None:
    """On "meta", where reading a number, which a device would have to be waited for, is an error."""
    lm = config is not MODERNBERT
    packed = packed_lm(tmp_path, length=LENGTH) if lm else packed_classes(tmp_path, lengths=[LENGTH])
    built = build(scratch(**config), packed, seed=0, weights=False)
    ids = torch.zeros((2, LENGTH), dtype=torch.int32, device="meta")
    assert logits_of(built, ids, ids, ids).is_meta


def test_evaluation_keeps_the_window(tmp_path: Path) -> None:
    """The loss of packed rows is that of their documents, each through transformers' own."""
    packed = packed_lm(tmp_path, rows=4, length=LENGTH, validation=4)
    built = made(CAUSAL["gemma 3"], packed)
    split = Split(packed, "validation")
    batch = split.read(next(split.in_order(4)))
    total = 0.0
    with torch.no_grad():
        for row in range(4):
            for segment in (1, 2):
                here = torch.from_numpy(batch.segment_ids[row] == segment)
                alone = built.model(input_ids=torch.from_numpy(batch.input_ids[row])[here][None].long()).logits[0]
                wanted = torch.from_numpy(batch.targets[row])[here].long()
                total += float(torch.nn.functional.cross_entropy(alone, wanted, ignore_index=-100, reduction="sum"))
    found = token_losses(built.model, split, 4, lambda rows: None)
    assert found.loss == pytest.approx(total / int(found.tokens.sum()), rel=1e-5)


@pytest.mark.xla
@pytest.mark.nightly  # both mask as the tests above say
def test_both_engines_train_a_windowed_model_alike(tmp_path: Path) -> None:
    packed = packed_lm(tmp_path / "packed", rows=16, length=LENGTH)
    common: dict[str, Any] = {"global_batch": 8, "epochs": 2, "learning_rate": 1e-2, "log_every": 1}
    found = [
        run_in_turn(
            [TrainConfig(**common, **fields)], tmp_path / str(n), model=scratch(**CAUSAL["gemma 3"]), packed=packed
        )
        for n, fields in enumerate(({"engine": "native"}, {"devices": 2}))
    ]
    (native,), (xla,) = found
    assert xla.curve("loss") == pytest.approx(native.curve("loss"), abs=1e-5)
    assert xla.curve("eval_loss") == pytest.approx(native.curve("eval_loss"), abs=1e-5)


def test_attention_by_documents_is_for_windows_that_hold_them(tmp_path: Path) -> None:
    packed = packed_lm(tmp_path, length=LENGTH)
    native = TrainConfig(engine="native")
    assert with_attention(native, build(scratch(**CAUSAL["mistral"]), packed, seed=0, weights=True)).attention == "sdpa"
    wide = {**CAUSAL["mistral"], "sliding_window": LENGTH}
    assert with_attention(native, build(scratch(**wide), packed, seed=0, weights=True)).attention == "documents"
    asked = native.model_copy(update={"attention": "documents"})
    with pytest.raises(ModelError, match="sliding window that is shorter than the rows"):
        with_attention(asked, build(scratch(**CAUSAL["mistral"]), packed, seed=0, weights=True))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {**SMALL, "model_type": "gpt_oss", "num_local_experts": 2, "head_dim": 8},
            "GptOssForCausalLM has no sdpa attention",
        ),
        ({**SMALL, "model_type": "gemma2", "head_dim": 8}, "Gemma2ForCausalLM has no sdpa attention"),
        (
            {**WHOLE, "model_type": "llama4_text", "attention_chunk_size": 8, "head_dim": 8, "num_local_experts": 2},
            "attends in chunks of 8 .* lower pack.chunk_length",
        ),
        ({**CAUSAL["gemma 3"], "use_bidirectional_attention": True}, "Gemma3ForCausalLM attends in both directions"),
        (
            {**WHOLE, "model_type": "lfm2", "layer_types": ["conv", "full_attention"] * 2},
            "Lfm2ForCausalLM has layers of conv, in which no mask keeps packed documents apart.*pack.strategy=pad",
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_attention_that_no_mask_here_expresses_is_refused(config: dict[str, Any], text: str, tmp_path: Path) -> None:
    packed = packed_lm(tmp_path, length=LENGTH)
    packed.meta["strategy"] = "bfd"
    with pytest.raises(ModelError, match=text):
        build(scratch(**config), packed, seed=0, weights=False)
