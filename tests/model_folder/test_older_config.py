"""Configs of transformers 5 get the keys of the family's own config class in transformers 4.57."""

from __future__ import annotations

from typing import Any

import pytest

from trnflow.tasks.model_folder.older_config import older_keys, with_older_keys

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
    "gemma3n_text": ({"num_kv_shared_layers": 0}, {"rope_theta": 1e6, "rope_local_base_freq": 1e4}),
    "olmo3": (
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 2e5, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e5},
            }
        },
        {"rope_theta": 2e5, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
    "modernbert-decoder": ({}, {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}),
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


def test_scaling_of_gemma_is_that_of_its_full_layers() -> None:
    from transformers import AutoConfig

    rope = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = AutoConfig.for_model("gemma3_text", **SMALL, rope_parameters=rope)
    wanted = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert older_keys(config.to_dict()) == wanted
    assert AutoConfig.for_model(**config.to_dict(), **wanted).rope_parameters == config.rope_parameters


@pytest.mark.parametrize(("family", "text"), [("mistral3", "mistral"), ("gemma3", "gemma3_text")])
def test_a_language_model_within_another_has_its_keys(family: str, text: str) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(family, text_config={"model_type": text, **SMALL, **CASES[text][0]})
    document = with_older_keys(config.to_diff_dict(), config.to_dict())
    assert document["text_config"].items() >= CASES[text][1].items()
    assert AutoConfig.for_model(**document).text_config.rope_parameters == config.text_config.rope_parameters


def test_layers_that_version_4_57_cannot_have_stop_it() -> None:
    """`index % 0` is an error there; 5 reads `layer_types`."""
    from transformers import AutoConfig

    kinds = ["full_attention", "sliding_attention", "full_attention", "full_attention"]
    keys = older_keys(AutoConfig.for_model("modernbert", **SMALL, layer_types=kinds).to_dict())
    assert keys["global_attn_every_n_layers"] == 0
    assert AutoConfig.for_model("modernbert", **SMALL, layer_types=kinds, **keys).layer_types == kinds


@pytest.mark.parametrize(
    ("family", "sliding", "key"),
    [
        ("olmo3", {"rope_type": "default", "rope_theta": 2e4}, "rope_theta"),
        ("gemma3_text", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}, "rope_local_base_freq"),
    ],
)
def test_a_base_that_version_4_57_cannot_have_stops_it(family: str, sliding: dict[str, Any], key: str) -> None:
    """It computes `null ** numbers`, an error; 5 reads `rope_parameters`."""
    from transformers import AutoConfig

    rope = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": sliding}
    config = AutoConfig.for_model(family, **SMALL, rope_parameters=rope)
    keys = older_keys(config.to_dict())
    assert keys[key] is None
    assert AutoConfig.for_model(**config.to_dict(), **keys).rope_parameters == config.rope_parameters
