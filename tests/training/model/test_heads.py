"""Tensors that a model does not use are refused, and heads of other tasks are none of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.toys import (
    BERT,
    DISTILBERT,
    LLAMA,
    VOCABULARY,
    minilm,
    packed_classes,
    packed_lm,
    packed_targets,
    pretrained,
    scratch,
)
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.batches import sampler
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.checkpoint.started_model import build_started
from trnflow.tasks.training.model.adapters import prepared
from trnflow.tasks.training.model.heads import too_coarse

ROBERTA = {**BERT, "model_type": "roberta", "pad_token_id": 1}
ELECTRA = {**BERT, "model_type": "electra", "embedding_size": 16}
ALBERT = {**BERT, "model_type": "albert", "embedding_size": 16}
MODERNBERT = {**BERT, "model_type": "modernbert", "pad_token_id": 0}
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}


def published(folder: Path, head: str, sizes: dict[str, Any], **more: torch.Tensor) -> Source:
    """Return a model of random values that transformers' class for `head` has saved, and tensors beside its own."""
    import transformers

    config = transformers.AutoConfig.for_model(**{"vocab_size": VOCABULARY, **sizes})
    built_by = getattr(transformers, head)
    model = (built_by.from_config if head.startswith("Auto") else built_by)(config)
    model.save_pretrained(folder)
    if more:
        file = folder / "model.safetensors"
        save_file({**load_file(file), **more}, file, {"format": "pt"})
    return pretrained(folder)


def started(source: Source, packed: Input, parts: bool) -> Any:
    return build_started(source, packed, seed=0, parts=parts)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize(
    ("head", "sizes"),
    [
        ("BertForPreTraining", BERT),
        ("BertForQuestionAnswering", BERT),
        ("AutoModel", BERT),
        ("RobertaForMaskedLM", ROBERTA),
        ("DistilBertForMaskedLM", DISTILBERT),
        ("ElectraForPreTraining", ELECTRA),
        ("ElectraForMaskedLM", ELECTRA),
        ("AlbertForPreTraining", ALBERT),
        ("GPT2DoubleHeadsModel", GPT2),
        ("ModernBertForMaskedLM", MODERNBERT),
        ("LlamaForCausalLM", LLAMA),
        ("LlamaForTokenClassification", LLAMA),
    ],
)
def test_heads_that_the_task_replaces_are_left_out(
    tmp_path: Path, head: str, sizes: dict[str, Any], parts: bool
) -> None:
    built = started(published(tmp_path / "model", head, sizes), packed_classes(tmp_path), parts)
    assert any("score" in name or "classifier" in name for name in built.lacking)


def test_a_published_folder_and_old_buffers_are_taken(tmp_path: Path) -> None:
    packed = packed_classes(tmp_path)
    started(pretrained(minilm()), packed, parts=False)
    old = {"transformer.h.0.attn.bias": torch.ones(1), "transformer.h.0.attn.masked_bias": torch.ones(1)}
    started(published(tmp_path / "gpt2", "GPT2LMHeadModel", GPT2, **old), packed_lm(tmp_path / "lm"), parts=True)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("head", ["BertForPreTraining", "AutoModel"])
def test_layers_that_the_configuration_leaves_out_are_named(tmp_path: Path, head: str, parts: bool) -> None:
    whole, packed = published(tmp_path / "model", head, BERT), packed_classes(tmp_path)
    part = replace(
        whole,
        identity={**whole.identity, "config": {**whole.identity["config"], "overrides": {"num_hidden_layers": 1}}},
    )
    with pytest.raises(ModelError, match="have 2 layers, and num_hidden_layers is 1.*allow_unused_weights"):
        started(part, packed, parts)
    built = started(replace(part, location={**part.location, "unused": True}), packed, parts)
    assert len(built.model.bert.encoder.layer) == 1


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("name", ["planted.weight", "bert.encoder.planted.weight", "bert.encoder.layer.0.extra.bias"])
def test_any_other_tensor_is_named(tmp_path: Path, name: str, parts: bool) -> None:
    source, packed = (
        published(tmp_path / "model", "BertForMaskedLM", BERT, **{name: torch.ones(2)}),
        packed_classes(tmp_path),
    )
    with pytest.raises(ModelError, match=f"model.source hold 1 tensors that .* does not use, such as {name}"):
        started(source, packed, parts)
    started(replace(source, location={**source.location, "unused": True}), packed, parts)


def test_tensors_are_named_where_rows_have_new_tokens(tmp_path: Path) -> None:
    source = published(tmp_path / "model", "BertForMaskedLM", BERT, planted=torch.ones(2))
    packed = packed_classes(tmp_path)
    packed = replace(packed, meta={**packed.meta, "new_tokens": [VOCABULARY - 1]})
    with pytest.raises(ModelError, match="such as planted"):
        started(source, packed, parts=False)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("task", ["multi_label", "regression"])
@pytest.mark.parametrize(
    ("head", "sizes"), [("AutoModel", BERT), ("RobertaForMaskedLM", ROBERTA), ("DistilBertForMaskedLM", DISTILBERT)]
)
def test_a_new_head_begins_with_the_means_of_trains_targets(
    tmp_path: Path, head: str, sizes: dict[str, Any], task: str, parts: bool
) -> None:
    """Of labels as log-odds; whatever a row holds, what the bias gives is near them, and no other value is changed."""
    packed = packed_targets(tmp_path / "packed", task, ["joy", "anger"])
    source, train = published(tmp_path / "model", head, sizes), Split(packed, "train")
    before, built = (started(source, packed, parts) for _ in range(2))
    prepared(TrainConfig(), built, packed.meta, train)
    changed = [name for name, value in built.parameters().items() if not torch.equal(value, before.parameters()[name])]
    last = changed[-1].removesuffix(".bias")
    assert changed == [f"{last}.{part}" for part in (["bias"] if task == "multi_label" else ["weight", "bias"])]
    assert last in ("classifier", "classifier.out_proj")
    targets = np.concatenate([train.read(at).targets for at in train.in_order(4)])
    means = np.nanmean(targets, axis=0)
    found = built.parameters()[changed[-1]].detach()
    assert torch.allclose(
        found.sigmoid() if task == "multi_label" else found, torch.from_numpy(means).float(), atol=0.01
    )
    if task == "regression":
        spread = torch.from_numpy(np.nanstd(targets, axis=0))[:, None].float()
        weights = [each.parameters()[changed[0]].detach() for each in (before, built)]
        assert torch.allclose(weights[0] * spread, weights[1], rtol=1e-4)


def test_a_head_of_tags_begins_with_their_shares(tmp_path: Path) -> None:
    tags = ["O", "B-x", "I-x", "B-y", "I-y"]
    packed = packed_targets(tmp_path / "packed", "token_classification", tags)
    source, train = published(tmp_path / "model", "AutoModel", BERT), Split(packed, "train")
    before, built = (started(source, packed, False) for _ in range(2))
    prepared(TrainConfig(), built, packed.meta, train)
    changed = [name for name, value in built.parameters().items() if not torch.equal(value, before.parameters()[name])]
    assert changed == ["classifier.bias"]
    every = np.concatenate([train.read(at).targets.ravel() for at in train.in_order(1)])
    shares = np.bincount(every[every >= 0], minlength=5) / (every >= 0).sum()
    np.testing.assert_allclose(built.parameters()["classifier.bias"].detach().softmax(0), shares, atol=0.005)
    assert np.isfinite(train.tag_shares(7)).all() and train.tag_shares(7).min() > 0, "a tag that train lacks"


def test_of_two_biases_of_one_size_the_last_begins_with_the_means(tmp_path: Path) -> None:
    """As many outputs as the layer before them has."""
    labels = [str(number) for number in range(ROBERTA["hidden_size"])]
    packed = packed_targets(tmp_path / "packed", "regression", labels, lengths=[len(labels)])
    source = published(tmp_path / "model", "AutoModel", ROBERTA)
    before, built = (started(source, packed, False) for _ in range(2))
    prepared(TrainConfig(), built, packed.meta, Split(packed, "train"))
    changed = [name for name, value in built.parameters().items() if not torch.equal(value, before.parameters()[name])]
    assert changed == ["classifier.out_proj.weight", "classifier.out_proj.bias"]


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_means_of_targets_are_of_all_rows_however_many_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(sampler, "BLOCK", block)
    train = Split(packed_targets(tmp_path, "regression", ["joy", "anger"], rows=15), "train")
    rows = [train.read(at).targets for at in train.in_order(5)]
    np.testing.assert_allclose(train.target_means(), np.concatenate(rows).mean(0), rtol=1e-6)
    np.testing.assert_allclose(train.target_deviations(), np.concatenate(rows).std(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "mean", "deviation", "said"),
    [
        ("bfloat16", 2000.0, 10.0, "around 2000 and differ by some 10"),
        ("bfloat16", -2000.0, 10.0, "around -2000"),
        ("bfloat16", 2000.0, 40.0, ""),
        ("bfloat16", 300.0, 200.0, ""),
        ("float16", 2000.0, 10.0, ""),
        ("float16", 2000.0, 1.0, "float16"),
        ("float32", 2000.0, 1.0, ""),
    ],
)
def test_numbers_that_the_type_can_hardly_tell_apart_are_remarked(
    dtype: str, mean: float, deviation: float, said: str
) -> None:
    train: Any = SimpleNamespace(
        target_means=lambda: np.array([0.0, mean]), target_deviations=lambda: np.array([1.0, deviation])
    )
    remarks = [*too_coarse(kind_of("regression"), train, dtype)]
    assert len(remarks) == bool(said) and all(said in remark for remark in remarks)
    assert not [*too_coarse(kind_of("classification"), train, dtype)]


def test_a_head_that_the_weights_have_begins_as_it_is(tmp_path: Path) -> None:
    packed = packed_targets(tmp_path / "packed", "regression", ["joy", "anger"])
    config = {**BERT, "id2label": {0: "joy", 1: "anger"}, "problem_type": "regression"}
    source = published(tmp_path / "model", "AutoModelForSequenceClassification", config)
    before, built = (started(source, packed, False) for _ in range(2))
    prepared(TrainConfig(), built, packed.meta, Split(packed, "train"))
    assert all(torch.equal(value, before.parameters()[name]) for name, value in built.parameters().items())


def test_a_cross_encoder_shows_numbers_and_not_their_sigmoid(tmp_path: Path) -> None:
    for task, said in (("regression", {"activation_fn": "torch.nn.modules.linear.Identity"}), ("multi_label", None)):
        built = started(scratch(**BERT), packed_targets(tmp_path / task, task, ["price"]), False)
        assert built.config.get("sentence_transformers") == said


def test_a_label_that_no_row_has_begins_with_a_finite_number() -> None:
    first = kind_of("multi_label").first_outputs(lambda: np.array([0.0, 1.0]), 50)
    assert np.allclose(first, [-np.log(101), np.log(101)])


def test_a_row_without_tags_has_no_loss_and_none_is_decided() -> None:
    targets = torch.tensor([[0, 1, -100], [-100, -100, -100]], dtype=torch.int32)
    found = kind_of("token_classification").outputs(torch.zeros(2, 3, 4), targets)
    np.testing.assert_allclose(found.loss, [np.log(4), 0.0])
    assert (found.decided == -100).tolist() == (targets == -100).tolist()
