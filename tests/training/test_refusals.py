"""A model folder is refused from its config.json alone: at plan, before any stage and without importing transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from safetensors.torch import save_file

from tests.conftest import PROJECT
from tests.helpers.command_line import Shell
from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.stage import Known
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.model.transformers_classes import UNKNOWN
from trnflow.tasks.training.model.transformers_tables import (
    CLASSIFIER,
    CONFIG,
    LANGUAGE,
    config_code,
    model_code,
    tables,
    words_of_all_configs,
)
from trnflow.tasks.training.refusals import refuse_long_export, refuse_unfit_model

LORA, HEAD = {"method": "lora"}, {"method": "head"}
CHUNKS = {"model_type": "llama4", "text_config": {"model_type": "llama4_text", "attention_chunk_size": 64}}
CONV = {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}


def known(task: str | None = None, overrides: Meta | None = None, rows: Meta | None = None, **config: Any) -> Known:
    chunks: Meta = {**({"task": task} if task else {}), **(rows or {})}
    identity = {"config": {"pretrained": config, "overrides": overrides or {}}}
    return Known({"model": Source("model", identity, {})}, {"chunks": chunks})


def refuse(given: Known, **train: Any) -> None:
    refuse_unfit_model(TrainConfig.model_validate({"engine": "native", **train}), given)


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
        ("causal_lm", {"model_type": "xlnet"}, "XLNetLMHeadModel has no sdpa attention"),
        ("classification", {"model_type": "deberta-v2"}, "no sdpa attention"),
    ],
)
def test_what_config_json_shows_is_refused(task: str | None, config: Meta, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        refuse(known(task, **config))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "train", "message"),
    [
        (known(model_type="bert", overrides={"hidden_sise": 8}), {}, "bert has no such field. Fix: use hidden_size"),
        (known("causal_lm", model_type="gpt2"), HEAD, "no head of its own to train"),
        (known("causal_lm", model_type="llama", tie_word_embeddings=True), HEAD, "no head of its own to train"),
        (known("causal_lm", model_type="olmo2"), LORA, "peft knows no targets for a model of type olmo2"),
        (known("classification", model_type="bert"), {"attention": "documents"}, "attends in both directions"),
        (known("causal_lm", model_type="opt"), {"devices": 2, "tensor_parallel_size": 2}, "no tp_plan"),
        (
            known("classification", model_type="bert"),
            {"devices": 5, "tensor_parallel_size": 5, "global_batch": 5},
            "12 heads",
        ),
        (known("causal_lm", CHUNKS, {"lengths": [128]}, **CHUNKS), {}, "attends in chunks of 64"),
        (known("causal_lm", {}, {"lengths": [8], "strategy": "bfd"}, **CONV), {}, "layers of conv"),
        (
            known("causal_lm", {}, {"lengths": [2048], "longest": 1025, "rows": {}}, model_type="gpt2"),
            {},
            "rows of 1025 tokens, but the model has 1024 positions",
        ),
        (
            known("classification", {}, {"lengths": [513]}, model_type="roberta", max_position_embeddings=514),
            {},
            "the model has 512 positions",
        ),
    ],
)
def test_what_config_json_and_the_settings_show_is_refused(given: Known, train: Meta, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        refuse(given, **train)
    assert message in str(caught.value)


def test_an_export_of_more_tokens_than_positions_is_refused() -> None:
    refuse_long_export(512, known(model_type="bert"))
    with pytest.raises(ModelError, match="positions for 512 tokens, and the export is for 513"):
        refuse_long_export(513, known(model_type="bert"))


@pytest.mark.parametrize(
    ("given", "train"),
    [
        (known("causal_lm", model_type="llama", auto_map={"AutoConfig": "mod.Config"}), LORA),
        (known("causal_lm", model_type="bert", is_decoder=True), {}),
        (known("causal_lm", model_type="llama"), HEAD),
        (known("causal_lm", model_type="gpt2", overrides={"tie_word_embeddings": False}), HEAD),
        (known("classification", model_type="bert"), HEAD),
        (known("classification", model_type="bert"), {"remat": True}),
        (known("classification", model_type="bert"), {"devices": 2, "tensor_parallel_size": 2}),
        (known(model_type="gpt2", overrides={"n_embd": 8, "hidden_size": 8, "id2label": {}}), {}),
        (known("causal_lm", {}, {"lengths": [8], "strategy": "pad"}, **CONV), {}),
        (known("causal_lm", CHUNKS, {"lengths": [64]}, **CHUNKS), {}),
        (known("classification", {}, {"lengths": [512]}, model_type="roberta", max_position_embeddings=514), {}),
    ],
)
def test_what_can_be_trained_is_not(given: Known, train: Meta) -> None:
    refuse(given, **train)


def test_plan_and_run_refuse_a_model_that_needs_its_own_code(trnflow: Shell) -> None:
    (trnflow.folder / "model").mkdir()
    config = {"model_type": "own_llama", "auto_map": {"AutoConfig": "mod.Config"}}
    (trnflow.folder / "model/config.json").write_text(json.dumps(config))
    (trnflow.folder / "model/tokenizer.json").touch()
    save_file({}, trnflow.folder / "model/model.safetensors")
    for command in (["plan"], ["run", "--direct", "tracking.enabled=false"]):
        error = trnflow.error(
            command[0], "mine.yaml", *command[1:], "model.source=model", "tokenize.train=null", code=1
        )
        assert "needs its own code for model_type 'own_llama'" in error
    assert not [*trnflow.folder.glob(".trnflow/store/records/*/*")]


def test_asking_imports_neither_transformers_nor_torch() -> None:
    code = (
        "import sys\nfrom trnflow.tasks.training.model.transformers_tables import *\n"
        "assert config_code('llama').of({}, 'max_position_embeddings') == 2048\n"
        "assert not {'transformers', 'torch', 'peft'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)


@pytest.mark.slow
def test_the_code_says_what_transformers_says() -> None:
    """Of each type: the tables, all fields, and whether its class has sdpa attention."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    assert {*tables()[CONFIG]} >= {*CONFIG_MAPPING.keys()}
    for table in (LANGUAGE, CLASSIFIER):
        assert tables()[table].keys() == getattr(modeling_auto, f"{table}_MAPPING_NAMES").keys()
    asked, every = 0, words_of_all_configs()
    for table, kind in ((LANGUAGE, AutoModelForCausalLM), (CLASSIFIER, AutoModelForSequenceClassification)):
        for model_type in tables()[table]:
            try:
                config = CONFIG_MAPPING[model_type]()
                real = kind._model_mapping[type(config)]
            except Exception:  # a type that needs settings, or another package
                continue
            code, model = config_code(model_type), model_code(model_type, table)
            if code.derives_from("PreTrainedConfig") and model.derives_from("PreTrainedModel"):
                asked += 1
                assert not {name for name in vars(config) if name[0] != "_"} - code.words - every, model_type
                assert code.of({}, "tie_word_embeddings") in (
                    None,
                    UNKNOWN,
                    getattr(config, "tie_word_embeddings", None),
                )
                assert model.value("_tied_weights_keys") in (None, UNKNOWN, real._tied_weights_keys), model_type
                assert bool(model.value("_supports_sdpa")) == bool(real._supports_sdpa), model_type
    assert asked > 250
