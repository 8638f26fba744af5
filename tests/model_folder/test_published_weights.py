"""Weights are written by the names that transformers itself would write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.toys import BERT, LLAMA, VOCABULARY
from trnflow.tasks.model_folder.published_weights import PublishedWeights, model_without_values

MODELS: dict[str, dict[str, Any]] = {
    "gpt_neox": {**BERT, "model_type": "gpt_neox"},
    "mixtral": {**LLAMA, "model_type": "mixtral", "num_local_experts": 4},
    "llama": LLAMA,
}


class InMemory:
    """The parameters of a model as `Weights`."""

    def __init__(self, model: Any) -> None:
        self._parameters = dict(model.named_parameters())
        self.names = list(self._parameters)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._parameters[name].shape)

    def tensor(self, name: str) -> Any:
        return self._parameters[name].detach()


@pytest.mark.parametrize("family", MODELS)
def test_names_and_values_are_those_of_save_pretrained(family: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**MODELS[family], vocab_size=VOCABULARY)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    weights = PublishedWeights(InMemory(model), model_without_values("causal_lm", config))
    assert set(weights.names) == set(saved)
    assert all(weights.shape(name) == tuple(value.shape) for name, value in saved.items())
    assert all(torch.equal(weights.tensor(name), value) for name, value in saved.items())
