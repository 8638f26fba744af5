"""All settings are described: on the terminal, in docs/settings.md, and in the JSON schema that editors read."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.conftest import PROJECT
from tests.helpers.command_line import Shell
from trnflow.flows.finetune import finetune
from trnflow.flows.recipes.files import conf_folder
from trnflow.flows.recipes.recipe import Recipe, load
from trnflow.flows.recipes.reference import UNKEYED, json_schema, markdown, settings_of
from trnflow.tasks.sources.model_source import ModelConfig


def test_every_setting_has_a_meaning() -> None:
    missing = [one.name for one in settings_of(Recipe) if not one.meaning]
    assert not missing


def test_a_section_that_no_stage_reads_is_in_no_key() -> None:
    recipe = load("demo")
    read = {type(node.config) for node in finetune(recipe).nodes} | {ModelConfig}
    unread = {name for name in Recipe.model_fields if type(getattr(recipe, name)) not in read}
    assert unread == {*UNKEYED, "stages"}, "each entry of `stages` is the config of a stage"


def test_the_page_of_settings_is_current() -> None:
    assert (PROJECT / "docs/settings.md").read_text() == markdown(Recipe), (
        "write it anew: trnflow settings --markdown > docs/settings.md"
    )


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema(Recipe)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", sorted(conf_folder().rglob("*.yaml")), ids=lambda path: path.stem)
def test_the_schema_accepts_the_shipped_recipes(validator: jsonschema.Draft202012Validator, path: Path) -> None:
    validator.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("train: {learning_rat: 1.0e-3}", "'learning_rat' was unexpected"),
        ("pack: {strategy: best}", "'best' is not one of"),
        ("data: {split: {tets: 0.1}}", "'tets'"),
        ("export: {batch: none}", "'none' is not of type"),
    ],
)
def test_the_schema_refuses_what_a_run_refuses(
    validator: jsonschema.Draft202012Validator, recipe: str, says: str
) -> None:
    with pytest.raises(jsonschema.ValidationError) as caught:
        validator.validate(yaml.safe_load(recipe))
    assert says in caught.value.message


@pytest.mark.parametrize(
    "recipe",
    [
        "data: {split: {test: null}, labels: null}",
        "train: {epochs: null}",
        "pack: {strategy: null}",
        "train: {class_weights: null, dtype: null}",
        "extends: demo",
    ],
)
def test_the_schema_accepts_null_where_a_recipe_does(validator: jsonschema.Draft202012Validator, recipe: str) -> None:
    validator.validate(yaml.safe_load(recipe))


def test_the_commands_print_settings_and_schema(trnflow: Shell) -> None:
    (one,) = trnflow.json("settings", "pack.strategy")["settings"]
    assert (
        one["default"] == "bfd" and one["takes"] == "one of pad, bucket, concat, bfd" and "best fit" in one["meaning"]
    )
    said = trnflow("settings", "export").stdout
    assert "export.tolerance\n    The largest accepted difference" in said
    assert trnflow.json("settings", "lowercase")["settings"][0]["name"] == "tokenize.train.lowercase"
    assert len(trnflow.json("settings")["settings"]) > 100
    assert "did you mean tokenize.max_length?" in trnflow.error("settings", "max_seq_length", code=2)
    assert json.loads(trnflow("schema").stdout)["properties"]["extends"]


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("lr=1e-3", "train.learning_rate"),
        ("batch_size=8", "train.global_batch"),
        ("train.per_device_train_batch_size=8", "train.micro_batch ("),
        ("num_train_epochs=1", "train.epochs"),
        ("train.num_epochs=1", "train.epochs"),
        ("data.max_length=64", "tokenize.max_length"),
        ("pack.max_seq_length=64", "tokenize.max_length"),
        ("fp16=true", "train.dtype ("),
        ("train.bf16=true", "train.dtype (set it to bfloat16)"),
        ("gradient_accumulation_steps=4", "train.global_batch ("),
        ("train.warmup_steps=10", "train.warmup_ratio (a fraction of all steps)"),
        ("model.model_name_or_path=bert-base-uncased", "model.source"),
        ("target_modules=[q]", "train.lora.targets"),
        ("chunk_length=64", "pack.chunk_length"),
        ("source=rows", "data.source or model.source"),
        ("train.learning_rat=1", "train.learning_rate"),
    ],
)
def test_names_of_other_tools_are_understood(trnflow: Shell, override: str, name: str) -> None:
    said = trnflow.error("config", "demo", override, code=2)
    assert f"{override.partition('=')[0]} is not a setting" in said
    assert f"did you mean {name}" in said
