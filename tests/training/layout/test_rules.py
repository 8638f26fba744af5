"""Rules for the models that bring no tp_plan: each names layers that are there, and splits all the large ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.toys import BERT, DISTILBERT, LLAMA, packed_classes, scratch
from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.layout.rules import RULES, tp_rules
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.partition_specs import Mesh, parameter_specs

MODELS = {"bert": BERT, "roberta": {**BERT, "model_type": "roberta"}, "distilbert": DISTILBERT}


def split(tmp_path, given: dict[str, str], **config: Any) -> dict[str, Any]:
    model = build(scratch(**config), packed_classes(tmp_path), seed=0, weights=False).model
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return parameter_specs(shapes, tp_rules(model, shapes, given), Mesh(1, 2), type(model).__name__)


@pytest.mark.parametrize("kind", RULES)
def test_every_matrix_of_a_layer_is_split(kind: str, tmp_path) -> None:
    specs = split(tmp_path, {}, **MODELS[kind])
    inside = {name: spec for name, spec in specs.items() if ".layer." in name and len(spec) == 2}
    assert len(inside) == 2 * 6 and all("model" in spec for spec in inside.values())
    whole = {name.split(".")[-2] for name, spec in specs.items() if len(spec) == 2 and "model" not in spec}
    heads = {"pooler", "classifier", "pre_classifier", "out_proj", "dense"}
    assert whole <= {"position_embeddings", "token_type_embeddings", *heads}


def test_a_recipe_s_rules_come_before_a_model_s_own(tmp_path) -> None:
    specs = split(tmp_path, {"model.layers.*.mlp.up_proj": "colwise"}, **LLAMA)
    assert [name for name, spec in specs.items() if "model" in spec] == [
        f"model.layers.{layer}.mlp.up_proj.weight" for layer in (0, 1)
    ]


@pytest.mark.parametrize(
    ("given", "config", "text"),
    [
        ({"bert.encoder.layer.*.qery": "colwise"}, BERT, "train.tensor_parallel_rules: bert.encoder.layer.*.qery names no"),
        ({}, {"model_type": "electra", "hidden_size": 32, "num_attention_heads": 2}, "no tp_plan, and no rules are known"),
    ],
)  # fmt: skip
def test_what_matches_nothing_is_refused(given, config, text, tmp_path) -> None:
    with pytest.raises(ModelError) as caught:
        split(tmp_path, given, **config)
    assert text in str(caught.value)
