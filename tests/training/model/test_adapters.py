"""What each method trains and what it freezes, on real models."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.small_models import workdir
from tests.training.toys import (
    BERT,
    DISTILBERT,
    DRY,
    LLAMA,
    minilm,
    packed_classes,
    packed_lm,
    pretrained,
    saved,
    scratch,
)
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.consolidate import ConsolidateConfig, consolidate
from trnflow.tasks.errors import ModelError
from trnflow.tasks.stage import write_json
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.checkpoint.shards import write
from trnflow.tasks.training.config import check_model
from trnflow.tasks.training.model.adapters import adapt, adapter_document, forward_passes, remarks_of_method
from trnflow.tasks.training.model.build import build, logits_of
from trnflow.tasks.training.model.lora import CONFIG, A, B
from trnflow.tasks.training.shared_types import PARAMETER, Built, TensorSlice

ALL = {"method": "lora", "lora": {"rank": 4, "targets": "all-linear"}}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4}


def adapted(tmp_path: Path, model: dict[str, Any], *, weights: bool = False, **fields: Any) -> Built:
    packed = packed_lm(tmp_path) if model["model_type"] == "llama" else packed_classes(tmp_path)
    return adapt(TrainConfig(**fields), build(scratch(**model), packed, seed=0, weights=weights))


def logits(built: Built, packed: Any) -> torch.Tensor:
    split = Split(packed, "train")
    batch = split.read(next(split.in_order(4)))
    built.model.eval()
    with torch.no_grad():
        columns = (batch.input_ids, batch.segment_ids, batch.position_ids)
        return logits_of(built, *(torch.from_numpy(column) for column in columns))


def test_lora_starts_from_the_base_model_and_from_the_seed(tmp_path) -> None:
    packed = packed_lm(tmp_path / "packed")
    base = saved(tmp_path / "base", **LLAMA)
    found = [adapt(TrainConfig(**ALL, seed=seed), build(base, packed, seed=seed, weights=True)) for seed in (0, 0, 1)]
    assert torch.equal(logits(found[0], packed), logits(build(base, packed, seed=0, weights=True), packed))
    one, same, other = (built.trained() for built in found)
    assert len(one) == 2 * 2 * 7 and all(name.rpartition(".")[0].endswith((A, B)) for name in one)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert all(torch.equal(one[name], other[name]) == name.endswith(f"{B}.weight") for name in one)
    assert all(parameter.requires_grad == (name in one) for name, parameter in found[0].parameters().items())


@pytest.mark.parametrize(
    "model", [BERT, {**BERT, "model_type": "roberta"}, DISTILBERT, LLAMA], ids=lambda m: m["model_type"]
)
@pytest.mark.parametrize("method", [ALL, {"method": "head"}], ids=["lora", "head"])
def test_what_is_trained_is_known_before_any_weights_are(method, model, tmp_path) -> None:
    model = {**model, "tie_word_embeddings": False} if model is LLAMA else model
    traced, real = (adapted(tmp_path, model, weights=weights, **method) for weights in (False, True))
    assert next(traced.model.parameters()).is_meta and all(p.is_meta for p in traced.parameters().values())
    shapes = [{name: tuple(p.shape) for name, p in built.trained().items()} for built in (traced, real)]
    assert shapes[0] == shapes[1] and list(shapes[0]) == list(shapes[1])
    assert traced.frozen == real.frozen and traced.frozen


@pytest.mark.parametrize(
    ("model", "heads"),
    [
        (BERT, {"bert.pooler.dense", "classifier"}),
        ({**BERT, "model_type": "roberta"}, {"classifier.dense", "classifier.out_proj"}),
        (DISTILBERT, {"pre_classifier", "classifier"}),
        ({**LLAMA, "tie_word_embeddings": False}, {"lm_head"}),
    ],
)
def test_a_head_alone(model, heads, tmp_path) -> None:
    built = adapted(tmp_path, model, method="head")
    assert {name.rpartition(".")[0] for name in built.trained()} == heads


def test_a_new_head_is_trained_beside_lora(tmp_path) -> None:
    packed = packed_classes(tmp_path)
    built = adapt(TrainConfig(method="lora"), build(pretrained(minilm()), packed, seed=0, weights=True))
    heads = {name for name in built.trained() if ".lora_" not in name}
    assert set(built.lacking) <= heads == {
        "bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"
    }  # fmt: skip
    document = adapter_document(built)
    assert (document["r"], document["task_type"]) == (8, "SEQ_CLS")
    assert (document["target_modules"], document["modules_to_save"]) == (["query", "value"], ["classifier", "pooler"])


@pytest.mark.parametrize(
    ("model", "lora", "found"),
    [
        (LLAMA, {}, ["q_proj", "v_proj"]),
        (LLAMA, {"targets": ["layers.1.mlp.*"]}, ["down_proj", "gate_proj", "up_proj"]),
        ({**LLAMA, "tie_word_embeddings": False}, {"targets": ["lm_head"]}, ["lm_head"]),
        (BERT, {"targets": ["dense"]}, ["dense"]),
        (DISTILBERT, {"targets": ["q_lin"]}, ["q_lin"]),
    ],
)
def test_targets(model, lora, found, tmp_path) -> None:
    built = adapted(tmp_path, model, method="lora", lora=lora)
    layers = {name.removesuffix(f"{A}.weight") for name in built.trained() if name.endswith(f"{A}.weight")}
    assert sorted({layer.rpartition(".")[2] for layer in layers}) == found
    assert not any("pooler" in layer or "classifier" in layer for layer in layers)
    if lora.get("targets") == ["layers.1.mlp.*"]:
        assert all(".layers.1." in layer for layer in layers)


@pytest.mark.parametrize(
    ("model", "lora", "said"),
    [
        (MIXTRAL, {"targets": "all-linear"}, r"\d\d% of the weights, such as .*experts"),
        (MIXTRAL, {"targets": "all-linear", "modules_to_save": ["experts"]}, ""),
        (
            MIXTRAL,
            {"targets": "all-linear", "modules_to_save": ["layers.0.mlp.experts"]},
            r"3\d% .*such as model.layers.1.",
        ),
        (MIXTRAL, {"targets": ["q_proj"]}, ""),
        (LLAMA, {"targets": "all-linear"}, ""),
    ],
)
def test_experts_that_all_linear_leaves_are_remarked(tmp_path: Path, model: Any, lora: Any, said: str) -> None:
    config = TrainConfig(method="lora", lora=lora)
    built = adapt(config, build(scratch(**model), packed_lm(tmp_path), seed=0, weights=False))
    told = [*remarks_of_method(config, built)]
    assert [re.search(said, text) is not None for text in told] == [True] * bool(said)


@pytest.mark.parametrize(
    ("tied", "fields", "said"),
    [
        (
            True,
            {"freeze": ["embed_tokens"]},
            "train.freeze names model.embed_tokens.weight, whose weights the output layer",
        ),
        (
            True,
            {"learning_rate_mapping": {"embed_tokens": 1e-5}},
            "train.learning_rate_mapping names model.embed_tokens",
        ),
        (True, {"freeze": ["norm"]}, ""),
        (False, {"freeze": ["embed_tokens"]}, ""),
    ],
)
def test_an_embedding_that_is_the_output_layer_too_is_remarked(
    tmp_path: Path, tied: bool, fields: dict[str, Any], said: str
) -> None:
    config, model = TrainConfig(**fields), scratch(**LLAMA, tie_word_embeddings=tied)
    built = adapt(config, build(model, packed_lm(tmp_path), seed=0, weights=False))
    assert [text.startswith(said) for text in remarks_of_method(config, built)] == [True] * bool(said)


@pytest.mark.parametrize(
    ("model", "fields", "text"),
    [
        (LLAMA, {"method": "lora", "lora": {"targets": ["qproj"]}}, "qproj names no linear layer of LlamaForCausalLM.*q_proj"),
        (LLAMA, {"method": "lora", "lora": {"targets": ["embed_tokens"]}}, "embed_tokens names no linear layer"),
        ({**LLAMA, "tie_word_embeddings": True}, {"method": "lora", "lora": {"targets": ["lm_head"]}}, "lm_head names no"),
        (LLAMA, {"method": "lora", "lora": {"layers_to_transform": [1, 2]}}, "no layer 2 of Llama.*0 to 1"),
        (LLAMA, {"method": "lora", "lora": {"modules_to_save": ["norms"]}}, "modules_to_save: norms names no.*use norm"),
        (LLAMA, {"method": "lora", "lora": {"targets": ["up_proj"], "modules_to_save": ["mlp"]}}, "up_proj names no"),
        (
            LLAMA,
            {"method": "lora", "lora": {"rank_pattern": {"q_proj": 4, "layers.0.self_attn.q_proj": 2}}},
            "all that layers.0.self_attn.q_proj names has another value by a pattern before it.*first",
        ),
        (LLAMA, {"method": "lora", "lora": {"rank": 33}}, "rank is 33, and model.layers.0.self_attn.q_proj has 32 inputs"),
        (DISTILBERT, {"method": "lora"}, "peft knows no targets for a model of type distilbert.*all-linear.*q_lin"),
        ({**LLAMA, "tie_word_embeddings": True}, {"method": "head"}, "has no head of its own.*tie_word_embeddings=false"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(model, fields, text, tmp_path) -> None:
    with pytest.raises(ModelError) as caught:
        adapted(tmp_path, model, **fields)
    assert re.search(text, str(caught.value))


def test_a_part_of_a_model_from_scratch_is_refused_before_anything_runs(tmp_path) -> None:
    with pytest.raises(ModelError, match="train.method=lora trains a part of a pretrained model"):
        check_model(TrainConfig(method="lora"), scratch(**LLAMA))
    check_model(TrainConfig(), scratch(**LLAMA))
    identity = {"config": {"pretrained": dict(LLAMA), "overrides": {}}, "weights": {"files": {}}}
    check_model(TrainConfig(method="lora"), Source("model", identity, {}))


def test_a_frozen_model_costs_a_pass_less(tmp_path) -> None:
    """Forward; back through the activations; and the weights' gradients, in proportion to what is trained."""
    full, lora, head = (
        forward_passes(adapted(tmp_path, {**BERT, **DRY}, **fields)) for fields in ({}, ALL, {"method": "head"})
    )
    assert full == 3.0
    assert 2.0 < lora < 2.5 and 1.0 < head < 1.5


@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [(["embed_tokens"], {"model.embed_tokens.weight"}), (["layers.0"], "model.layers.0."), (["layers.*.mlp"], ".mlp.")],
)
def test_freeze_names_parts_of_the_model(tmp_path: Path, freeze: list[str], frozen: Any) -> None:
    built = adapted(tmp_path, {**LLAMA, "tie_word_embeddings": False}, freeze=freeze)
    named = frozen if isinstance(frozen, set) else {name for name in built.parameters() if frozen in name}
    assert built.frozen == named and named
    assert {name for name, parameter in built.parameters().items() if not parameter.requires_grad} == named


@pytest.mark.parametrize(
    ("freeze", "said", "fix"),
    [
        (["embed_token"], "embed_token names no part of LlamaForCausalLM", "embed_tokens"),
        (["model", "lm_head"], "nothing of the model is left to train", "leave a part out"),
    ],
)
def test_a_freeze_that_fits_nothing_or_all_is_refused(tmp_path: Path, freeze: list[str], said: str, fix: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        adapted(tmp_path, {**LLAMA, "tie_word_embeddings": False}, freeze=freeze)
    assert fix in caught.value.fix


def test_a_part_is_frozen_of_a_pretrained_model_alone() -> None:
    with pytest.raises(ValueError, match="freeze is for method full, and lora freezes all"):
        TrainConfig(method="lora", freeze=["layers.0"])
    with pytest.raises(ModelError, match="train.freeze trains a part of a pretrained model"):
        check_model(TrainConfig(freeze=["layers.0"]), scratch(**LLAMA))


def test_an_adapter_lies_in_a_folder_of_its_own_with_the_tokenizer(tmp_path: Path) -> None:
    packed = packed_lm(tmp_path / "packed")
    built = adapt(TrainConfig(method="lora", lora={"rank": 2}), build(scratch(**LLAMA), packed, seed=0, weights=True))
    trained = {name: value.detach() for name, value in built.trained().items()}
    folder = tmp_path / "checkpoint"
    write(folder, [TensorSlice(PARAMETER + n, 0, (0, 0), tuple(v.shape), v) for n, v in trained.items()], {})
    write_json(folder / "config.json", built.config)
    write_json(folder / CONFIG, adapter_document(built))
    write_json(folder / "tokenizer/tokenizer_config.json", {})
    write_json(folder / "tokenizer/added.json", {"a": 1})
    shards = Input(
        folder, "checkpoint", {"task": "causal_lm", "labels": None, "lengths": [16], "method": "lora"}, "sha256:c"
    )
    out = workdir(tmp_path / "out")
    consolidate(ConsolidateConfig(), shards, saved(tmp_path / "base", **LLAMA), out=out)
    assert {"added.json", "tokenizer_config.json", "generation_config.json", CONFIG, "README.md"} <= {
        file.name for file in (out.path / "adapter").iterdir()
    }


def test_an_adapter_names_peft_s_task_of_what_the_model_learnt(tmp_path: Path) -> None:
    """By it peft opens the folder: a reward model as a language model would lack its head."""
    lora = TrainConfig(method="lora", lora={"rank": 2})
    built = adapt(lora, build(scratch(**LLAMA), packed_lm(tmp_path / "packed"), seed=0, weights=False))
    wanted = {
        "causal_lm": "CAUSAL_LM", "preference": "CAUSAL_LM", "reward": "SEQ_CLS", "classification": "SEQ_CLS",
        "token_classification": "TOKEN_CLS", "embedding": "FEATURE_EXTRACTION",
    }  # fmt: skip
    found = {task: adapter_document(replace(built, task=task))["task_type"] for task in wanted}
    assert found == wanted


def test_weights_of_quantised_layers_count() -> None:
    model: Any = torch.nn.Linear(4, 2)
    model.packed_numbers = 90
    assert Built(model, "causal_lm", causal=True, first_position=0, config={}).numbers == 100
