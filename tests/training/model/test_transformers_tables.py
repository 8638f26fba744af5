"""A model folder is refused from its config.json alone: at plan, before any stage and without importing transformers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.command_line import Shell
from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.stage import Known
from trnflow.tasks.training.model import transformers_tables
from trnflow.tasks.training.model.transformers_tables import refuse_unknown_architecture


def known(task: str | None = None, **config: Any) -> Known:
    chunks: Meta = {"task": task} if task else {}
    identity = {"config": {"pretrained": config, "overrides": {}}}
    return Known({"model": Source("model", identity, {})}, {"chunks": chunks})


@pytest.mark.parametrize(
    ("task", "config", "message"),
    [
        (None, {"model_type": "own_llama", "auto_map": {"AutoConfig": "mod.Config"}}, "needs its own code"),
        (None, {"model_type": "lama"}, "knows no model_type 'lama'. Fix: use llama"),
        (None, {}, "knows no model_type"),
        ("causal_lm", {"model_type": "bert"}, "attends in both directions, or generates no text"),
        ("causal_lm", {"model_type": "gemma3_text", "use_bidirectional_attention": True}, "attends in both directions"),
        ("causal_lm", {"model_type": "vit"}, "generates no text"),
        ("classification", {"model_type": "vit"}, "no classifier of model_type vit"),
    ],
)
def test_what_config_json_shows_is_refused(task: str | None, config: Meta, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        refuse_unknown_architecture(known(task, **config))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("task", "config"),
    [
        ("causal_lm", {"model_type": "llama", "auto_map": {"AutoConfig": "mod.Config"}}),
        ("causal_lm", {"model_type": "bert", "is_decoder": True}),
        ("causal_lm", {"model_type": "xlm"}),
        ("classification", {"model_type": "bert"}),
        (None, {"model_type": "bert"}),
    ],
)
def test_what_can_be_trained_is_not(task: str | None, config: Meta) -> None:
    refuse_unknown_architecture(known(task, **config))


def test_plan_and_run_refuse_a_model_that_needs_its_own_code(trnflow: Shell) -> None:
    (trnflow.folder / "model").mkdir()
    config = {"model_type": "own_llama", "auto_map": {"AutoConfig": "mod.Config"}}
    (trnflow.folder / "model/config.json").write_text(json.dumps(config))
    (trnflow.folder / "model/model.safetensors").touch()
    for command in (["plan"], ["run", "--direct", "tracking.enabled=false"]):
        error = trnflow.error(
            command[0], "mine.yaml", *command[1:], "model.source=model", "tokenize.train=null", code=1
        )
        assert "needs its own code for model_type 'own_llama'" in error
    assert not [*trnflow.folder.glob(".trnflow/store/records/*/*")]


def test_the_tables_are_those_that_transformers_uses() -> None:
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    tables = transformers_tables._tables()
    assert tables["CONFIG"] >= {*CONFIG_MAPPING.keys()}
    for name, types in tables.items():
        if name != "CONFIG":
            assert types == {*getattr(modeling_auto, f"{name}_MAPPING_NAMES")}
