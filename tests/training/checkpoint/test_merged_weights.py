"""Whole weights from a checkpoint of a part: the logits are those of the model that was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.toys import BERT, DISTILBERT, LLAMA, packed_classes, packed_lm, saved
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.model_folder.published_weights import model_without_values
from trnflow.tasks.stage import write_json
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.checkpoint.adapter_slices import beside_initial
from trnflow.tasks.training.checkpoint.merged_weights import MergedWeights, write_adapter
from trnflow.tasks.training.checkpoint.shards import Reader, write
from trnflow.tasks.training.checkpoint.starting_weights import base_weights
from trnflow.tasks.training.model.adapters import adapt, adapter_document
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.model.lora import CONFIG
from trnflow.tasks.training.shared_types import PARAMETER, Built, TensorSlice

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
QWEN2 = {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True}
ALL = {"method": "lora", "lora": {"rank": 4, "alpha": 12, "targets": "all-linear"}}
PATTERNS = {
    "method": "lora",
    "lora": {
        "rank": 4, "alpha": 12, "targets": "all-linear", "use_rslora": True,
        "rank_pattern": {"0.*.*": 2, "q_proj": 8}, "alpha_pattern": {"layers.1.mlp.*": 3},
    },
}  # fmt: skip
IDS = torch.arange(3, 19)[None]


def lora(**fields: Any) -> dict[str, Any]:
    return {"method": "lora", "lora": {**ALL["lora"], **fields}}


DORA = lora(use_dora=True, rank_pattern={"q_proj": 2})
PISSA = lora(init_lora_weights="pissa", alpha_pattern={"v_proj": 3})
OLORA = lora(init_lora_weights="olora", use_rslora=True)
SAVED = lora(modules_to_save=["embed_tokens", "norm", "layers.1.mlp"], layers_to_transform=[0])
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dora": (LLAMA, DORA),
    "dora of conv1d": (GPT2, lora(use_dora=True)),
    "pissa": (LLAMA, PISSA),
    "pissa of conv1d": (GPT2, lora(init_lora_weights="pissa_niter_4")),
    "olora": (LLAMA, OLORA),
    "dora from pissa": (LLAMA, lora(init_lora_weights="pissa", use_dora=True)),
    "gaussian": (LLAMA, lora(init_lora_weights="gaussian")),
    "saved": ({**LLAMA, "tie_word_embeddings": False}, SAVED),
    "saved tied": (QWEN2, lora(modules_to_save=["embed_tokens"])),
}


def merged_weights(shards: Input, base: Source) -> MergedWeights:
    from transformers import AutoConfig

    empty = model_without_values(shards.meta["task"], AutoConfig.from_pretrained(shards.path))
    return MergedWeights(shards, base_weights(base, empty), Reader(shards.path, PARAMETER), empty)


def checkpoint(folder: Path, config: TrainConfig, built: Built) -> Input:
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in built.trained().values():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    slices = [
        TensorSlice(PARAMETER + n, 0, (0,) * p.ndim, tuple(p.shape), p.detach()) for n, p in built.trained().items()
    ]
    write(folder, beside_initial(slices, built.initial, 1), {})
    write_json(folder / "config.json", built.config)
    if config.lora:
        write_json(folder / CONFIG, adapter_document(built))
    settings = config.model_dump(mode="json", include={"lora", "dtype"})
    return Input(folder, "checkpoint", {"task": built.task, "method": config.method, "settings": settings}, "sha256:c")


@pytest.mark.parametrize(
    ("model", "task", "fields"),
    [
        (LLAMA, "causal_lm", ALL),
        (LLAMA, "causal_lm", PATTERNS),
        (QWEN2, "causal_lm", {"method": "lora", "lora": {"use_rslora": True}}),
        (GPT2, "causal_lm", ALL),  # its layers are Conv1D, whose weights lie the other way round
        (LLAMA, "causal_lm", lora(base_dtype="int8", modules_to_save=["layers.1.mlp", "norm"])),
        (BERT, "classification", lora(use_dora=True)),
        (DISTILBERT, "classification", {"method": "lora", "lora": {"targets": ["q_lin", "ffn.*"]}}),
        ({**BERT, "model_type": "roberta"}, "classification", {"method": "head"}),
        ({**LLAMA, "tie_word_embeddings": False}, "causal_lm", {"method": "head"}),
    ],
    ids=lambda value: value.get("model_type", value.get("method")) if isinstance(value, dict) else value,
)
def test_merged_weights_are_the_trained_model(
    model: dict[str, Any], task: str, fields: dict[str, Any], tmp_path
) -> None:
    packed = (packed_lm if task == "causal_lm" else packed_classes)(tmp_path / "packed")
    base, config = saved(tmp_path / "base", task=task, **model), TrainConfig(**fields, engine="native")
    plain = build(base, packed, seed=0, weights=True)
    trained = adapt(config, build(base, packed, seed=0, weights=True))
    merged = merged_weights(checkpoint(tmp_path / "checkpoint", config, trained), base)
    assert merged.names == sorted(plain.parameters())
    with torch.no_grad():
        before = plain.model.eval()(IDS).logits
        for name, parameter in plain.parameters().items():
            assert merged.shape(name) == tuple(parameter.shape)
            parameter.copy_(merged.tensor(name))
        torch.testing.assert_close(plain.model(IDS).logits, trained.model.eval()(IDS).logits, rtol=0, atol=1e-5)
        assert (plain.model(IDS).logits - before).abs().max() > 1e-3


def test_texts_that_choose_weights_are_generated_as_the_published_model_generates(tmp_path) -> None:
    from trnflow.tasks.evaluation.best_text_metric import trained_model

    packed, base = packed_lm(tmp_path / "packed"), saved(tmp_path / "base", **LLAMA)
    own = {"stop_strings": ["."], "suppress_tokens": [4], "min_new_tokens": 9, "repetition_penalty": 1.5}
    write_json(tmp_path / "base" / "generation_config.json", own)
    base = Source(base.kind, {**base.identity, "generation": "sha256:own"}, base.location)
    shards = checkpoint(tmp_path / "checkpoint", TrainConfig(), build(base, packed, seed=0, weights=True))
    model = trained_model(shards, base, None, packed.meta)
    assert len(model.generate(IDS, do_sample=False, max_new_tokens=2)[0]) == IDS.shape[1] + 2
    used = model.generation_config.to_diff_dict()
    assert used["repetition_penalty"] == 1.5 and not used.keys() & {*own} - {"repetition_penalty"}


def test_ranks_and_scalings_by_pattern_are_what_peft_opens(tmp_path) -> None:
    """From what is published, without our code."""
    import peft
    from transformers import AutoModelForCausalLM

    packed, config = packed_lm(tmp_path / "packed"), TrainConfig(**PATTERNS)
    base = saved(tmp_path / "base", **LLAMA)
    trained = adapt(config, build(base, packed, seed=0, weights=True))
    shards = checkpoint(tmp_path / "checkpoint", config, trained)
    write_adapter(tmp_path / "adapter", shards, base, Reader(shards.path, PARAMETER), "float32", trained.model)
    opened = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    ranks = {name: len(p) for name, p in trained.trained().items() if "lora_A" in name}
    assert {rank for name, rank in ranks.items() if ".layers.0." in name} == {2}
    assert {rank for name, rank in ranks.items() if ".layers.1." in name} == {4, 8}
    with torch.no_grad():
        ours, theirs = trained.model.eval()(IDS).logits, opened.eval()(IDS).logits
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_one_model_trained_merged_and_in_peft(form: str, tmp_path: Path) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    (model, fields), packed = FORMS[form], packed_lm(tmp_path / "packed")
    base, config = saved(tmp_path / "base", **model), TrainConfig(**fields)
    built = adapt(config, build(base, packed, seed=0, weights=True))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    with torch.no_grad():
        before = plain(IDS).logits
        torch.testing.assert_close(built.model.eval()(IDS).logits, before, rtol=0, atol=1e-5)
    shards = checkpoint(tmp_path / "checkpoint", config, built)
    with torch.no_grad():
        ours = built.model.eval()(IDS).logits
        merged = merged_weights(shards, base)
        for name, parameter in plain.named_parameters():
            parameter.copy_(merged.tensor(name))
        torch.testing.assert_close(plain(IDS).logits, ours, rtol=0, atol=1e-5)
    write_adapter(tmp_path / "adapter", shards, base, Reader(shards.path, PARAMETER), "float32", plain)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    opened = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    with torch.no_grad():
        torch.testing.assert_close(opened(IDS).logits, ours, rtol=0, atol=1e-5)
    assert (ours - before).abs().max() > 1e-3


def test_a_pattern_that_fits_no_layer_is_refused(tmp_path) -> None:
    packed, base = packed_lm(tmp_path / "packed"), saved(tmp_path / "base", **LLAMA)
    config = TrainConfig(method="lora", lora={"rank_pattern": {"qproj": 4}})
    with pytest.raises(ModelError, match=r"train.lora.rank_pattern: qproj names no linear layer") as caught:
        adapt(config, build(base, packed, seed=0, weights=True))
    assert "q_proj" in caught.value.fix


def test_a_base_of_another_architecture_is_refused(tmp_path) -> None:
    packed, config = packed_classes(tmp_path / "packed"), TrainConfig(method="head")
    base = saved(tmp_path / "base", task="classification", **BERT)
    shards = checkpoint(tmp_path / "checkpoint", config, adapt(config, build(base, packed, seed=0, weights=True)))
    index = shards.path / "index.json"
    index.write_text(index.read_text().replace("classifier.weight", "klassifier.weight"))
    with pytest.raises(
        ModelError, match=r"klassifier.weight was trained, and BertForSequenceClassification .* no such"
    ):
        merged_weights(shards, base)
