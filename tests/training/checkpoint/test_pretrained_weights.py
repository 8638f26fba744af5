"""Parameters read one at a time are those that transformers' own loader reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.toys import BERT, LLAMA, VOCABULARY
from trnflow.tasks.errors import ModelError
from trnflow.tasks.model_folder.published_weights import model_without_values
from trnflow.tasks.training.checkpoint.grown_weights import GrownWeights
from trnflow.tasks.training.checkpoint.pretrained_weights import PretrainedWeights
from trnflow.tasks.training.model.pretrained import auto_class

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("causal_lm", LLAMA),
    "tied": ("causal_lm", {**LLAMA, "tie_word_embeddings": True}),
    "gpt_neox": ("causal_lm", {**BERT, "model_type": "gpt_neox"}),
    "mixtral": ("causal_lm", {**LLAMA, "model_type": "mixtral", "num_local_experts": 4}),
    "gpt2": ("causal_lm", {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2}),
    "bert": ("classification", BERT),
}


def saved(folder: Path, family: str, **options: Any) -> tuple[Any, PretrainedWeights]:
    """Return (a random model that was saved to `folder`, the reader of the folder)."""
    from transformers import AutoConfig

    torch.manual_seed(0)
    task, sizes = MODELS[family]
    config = AutoConfig.for_model(**{"vocab_size": VOCABULARY, **sizes})
    model = auto_class(task).from_config(config)
    model.save_pretrained(folder, **options)
    return model, PretrainedWeights(folder, model_without_values(task, config))


@pytest.mark.parametrize("size", ["5GB", "20KB"])
@pytest.mark.parametrize("family", MODELS)
def test_each_parameter_is_the_saved_model_s(family: str, size: str, tmp_path: Path) -> None:
    model, weights = saved(tmp_path, family, max_shard_size=size)
    for name, value in model.named_parameters():
        assert weights.has(name) and torch.equal(weights.tensor(name), value)
    joined = {name for name, _ in model.named_parameters() if weights.stored_name(name) is None}
    assert all("experts" in name for name in joined) and bool(joined) == (family == "mixtral")


@pytest.mark.parametrize("family", ["llama", "tied", "bert"])
def test_rows_of_new_tokens_are_the_mean_of_those_there(family: str, tmp_path: Path) -> None:
    model, weights = saved(tmp_path, family)
    larger = type(model.config)(**{**model.config.to_dict(), "vocab_size": VOCABULARY + 3})
    empty = model_without_values(MODELS[family][0], larger)
    grown, sizes = GrownWeights(weights, empty), {name: tuple(p.shape) for name, p in empty.named_parameters()}
    for name, value in model.named_parameters():
        assert grown.shape(name) == sizes[name] == tuple(grown.tensor(name).shape)
        torch.testing.assert_close(grown.tensor(name)[: len(value)], value.data, rtol=0, atol=0)
        for row in grown.tensor(name)[len(value) :]:
            torch.testing.assert_close(row, value.data.mean(0))


def test_old_names_and_a_body_without_a_head_are_read(tmp_path: Path) -> None:
    """Google's BERT names its norms gamma and beta; a model saved without a head has no prefix before its names."""
    model, _ = saved(tmp_path, "bert")
    file = tmp_path / "model.safetensors"
    body = {name.removeprefix("bert."): value for name, value in load_file(file).items() if name.startswith("bert.")}
    older = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in body.items()}
    save_file({name.replace("LayerNorm.bias", "LayerNorm.beta"): value for name, value in older.items()}, file)
    weights = PretrainedWeights(tmp_path, model)
    for name, value in model.named_parameters():
        assert weights.has(name) == name.startswith("bert.")
        assert not weights.has(name) or torch.equal(weights.tensor(name), value)
    with pytest.raises(ModelError, match=r"the weights lack classifier\.weight"):
        weights.tensor("classifier.weight")


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    model, _ = saved(tmp_path, "llama", max_shard_size="20KB")
    first = min(tmp_path.glob("model-*.safetensors"))
    first.write_bytes(first.read_bytes()[:100])
    with pytest.raises(ModelError, match=f"{first.name} can't be read as safetensors"):
        PretrainedWeights(tmp_path, model)
    first.unlink()
    with pytest.raises(ModelError, match=f"names {first.name}, which is not there"):
        PretrainedWeights(tmp_path, model)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match=r"holds no model\.safetensors"):
        PretrainedWeights(tmp_path, model)


def test_tied_parameters_that_differ_in_the_files_are_refused(tmp_path: Path) -> None:
    model, _ = saved(tmp_path, "tied")
    file = tmp_path / "model.safetensors"
    values = load_file(file)
    name = next(name for name in values if name.endswith("embed_tokens.weight"))
    save_file(values | {"lm_head.weight": values[name].clone()}, file, {"format": "pt"})
    PretrainedWeights(tmp_path, model)
    save_file(values | {"lm_head.weight": values[name] + 1}, file, {"format": "pt"})
    with pytest.raises(ModelError, match="hold different values"):
        PretrainedWeights(tmp_path, model)


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_a_part_of_a_parameter_is_that_part(family: str, tmp_path: Path) -> None:
    model, weights = saved(tmp_path, family)
    for name, value in model.named_parameters():
        at = tuple(slice(size // 2, None) for size in value.shape)
        assert torch.equal(weights.part(name, at), value[at])
