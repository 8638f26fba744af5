"""Configs of transformers 5 get the keys of the family's own config class in transformers 4.57."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.model_folder.older_config import older_keys

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
SMALL = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    ),
    "qwen2": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, {"rope_theta": 1e6}),
    "qwen3": (
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}},
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ),
    "mistral": ({}, {"rope_theta": 10000.0}),
    "phi": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}},
        {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
    ),
    "gpt_neox": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.5}},
        {"rotary_emb_base": 2e4, "rotary_pct": 0.5},
    ),
    "modernbert": (
        {
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 3e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        },
        {"global_rope_theta": 3e4, "local_rope_theta": 2e4, "global_attn_every_n_layers": 2},
    ),
    "gemma3_text": ({}, {"rope_theta": 1e6, "rope_local_base_freq": 1e4}),
    "bert": ({}, {}),
    "roberta": ({}, {}),
    "distilbert": ({}, {}),
}


@pytest.mark.parametrize("family", CASES)
def test_the_keys_of_a_family(family: str) -> None:
    from transformers import AutoConfig

    given, wanted = CASES[family]
    config = AutoConfig.for_model(family, **({} if family == "distilbert" else SMALL), **given)
    assert older_keys(config.to_dict()) == wanted
    again = AutoConfig.for_model(**config.to_dict(), **wanted)
    assert getattr(again, "rope_parameters", None) == getattr(config, "rope_parameters", None)
