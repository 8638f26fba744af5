"""The numbers of a config tell the parameters and the layout of the real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.train import TrainConfig
from tasks.training.families import DEFAULTS, family_of
from tasks.training.layout import lay_out, layout_of
from tasks.training.model import build
from tests.training.toys import packed_classes, packed_lm, scratch

SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
DISTILLED = {"dim": 48, "hidden_dim": 80, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 32}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("classification", "bert", SMALL),
    ("classification", "roberta", SMALL),
    ("classification", "distilbert", DISTILLED),
    ("classification", "distilbert", {**DISTILLED, "hidden_size": 40, "num_hidden_layers": 1}),
    ("classification", "llama", GROUPED),
    ("classification", "qwen3", GROUPED),
    ("causal_lm", "llama", SMALL),
    ("causal_lm", "llama", {**GROUPED, "head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    ("causal_lm", "mistral", {**SMALL, "num_key_value_heads": 4, "sliding_window": None}),
    ("causal_lm", "qwen2", {**GROUPED, "tie_word_embeddings": True}),
    ("causal_lm", "qwen3", {**GROUPED, "head_dim": 20, "tie_word_embeddings": True}),
]


@pytest.mark.parametrize(("task", "kind", "fields"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_parameters_and_layout_are_those_of_the_real_model(
    task: str, kind: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    packed = packed_classes(tmp_path) if task == "classification" else packed_lm(tmp_path)
    fields = {"model_type": kind, **fields}
    built = build(scratch(**fields), packed, seed=0, weights=False)
    family = family_of({**fields, "vocab_size": packed.meta["vocab_size"]}, task, len(packed.meta["labels"] or ()))
    assert family is not None
    assert family.shapes == {name: tuple(p.shape) for name, p in built.parameters().items()}
    for layout in ({}, {"zero1": True}, {"tensor_parallel_size": 2}):
        config = TrainConfig(engine="native", devices=4, global_batch=4, **layout)
        real = layout_of(config, built)
        planned = lay_out(config, kind, family.shapes, family.plan, family.shapes)
        assert (planned.tp, planned.states) == (real.tp, real.states)


@pytest.mark.parametrize("kind", sorted(DEFAULTS))
def test_what_a_config_leaves_out_is_as_transformers_has_it(kind: str) -> None:
    from transformers import AutoConfig

    real = AutoConfig.for_model(kind)
    for name, value in DEFAULTS[kind].items():
        assert getattr(real, name, value) == value, name


def test_other_families_and_tasks_are_not_guessed() -> None:
    assert family_of({"model_type": "gpt2"}, "causal_lm", 0) is None
    assert family_of({"model_type": "bert"}, "causal_lm", 0) is None
    assert family_of({"model_type": "bert", "is_decoder": True}, "causal_lm", 0) is None
