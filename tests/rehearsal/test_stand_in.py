"""A stand-in has one layer of each kind, and can be built, whatever the family."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from trnflow.tasks.rehearsal.stand_in import _builds, smallest

SIZES = {
    "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
    "max_position_embeddings": 64, "num_hidden_layers": 12, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2, "head_dim": 8}
FAMILIES: dict[str, tuple[dict[str, Any], int]] = {
    "bert": ({}, 1),
    "llama": ({}, 1),
    "qwen3": ({"head_dim": 8}, 1),
    "qwen3_moe": ({**EXPERTS, "num_experts": 4}, 1),
    "gemma3_text": ({"head_dim": 8}, 2),
    "gpt_oss": ({"num_local_experts": 4, "head_dim": 8}, 2),
    "modernbert": ({}, 2),
    "smollm3": ({}, 2),
    "llama4_text": (
        {"num_local_experts": 2, "intermediate_size_mlp": 32, "head_dim": 8, "interleave_moe_layer_step": 2}, 3
    ),
    "lfm2": ({"layer_types": ["conv", "conv", "full_attention"] * 4}, 2),
    "deepseek_v3": (
        {
            "moe_intermediate_size": 16, "num_experts_per_tok": 2, "n_routed_experts": 8, "n_group": 2, "topk_group": 1,
            "num_key_value_heads": 4, "q_lora_rank": 8,
            "kv_lora_rank": 8, "qk_rope_head_dim": 4, "head_dim": 4,
            "qk_nope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 3,
        },
        2,
    ),
}  # fmt: skip
"""Family -> (settings of its own, the kinds of its layers)."""
EAGER = ("gpt_oss",)
"""Those without sdpa, which training takes."""
BIDIRECTIONAL = ("bert", "modernbert")


@pytest.mark.parametrize("family", FAMILIES)
def test_one_layer_of_each_kind(family: str) -> None:
    from transformers import AutoConfig

    from trnflow.tasks.training.model.pretrained import auto_class

    own, kinds = FAMILIES[family]
    whole = AutoConfig.for_model(family, **{**SIZES, **own})
    kind = auto_class("classification" if family in BIDIRECTIONAL else "causal_lm")
    builds = (lambda tried: True) if family in EAGER else lambda tried: _builds(kind, tried)
    assert builds(whole)
    small, settings = smallest(whole, builds)
    assert settings["num_hidden_layers"] == small.num_hidden_layers == kinds
    assert whole.num_hidden_layers == SIZES["num_hidden_layers"]  # the model's own configuration stays
    _answers(kind, small, _kinds(whole))


def _kinds(config: Any) -> set[str]:
    return {*(getattr(config, "layer_types", None) or ())}


def _answers(kind: Any, config: Any, kinds: set[str]) -> None:
    """The small model has every kind of layer, and computes."""
    import torch

    assert _kinds(config) == kinds
    logits = kind.from_config(deepcopy(config)).eval()(input_ids=torch.arange(8)[None]).logits
    assert torch.isfinite(logits).all()


def test_layers_that_are_added_are_of_the_kinds_that_stand_there() -> None:
    from transformers import AutoConfig

    own = {**FAMILIES["deepseek_v3"][0], "first_k_dense_replace": 2}
    tries = iter([False, True])
    small, settings = smallest(AutoConfig.for_model("deepseek_v3", **{**SIZES, **own}), lambda tried: next(tries))
    assert settings["num_hidden_layers"] == small.num_hidden_layers == 4
    assert settings["first_k_dense_replace"] == 2
