"""Words of axolotl, TRL, LLaMA-Factory, Unsloth, Ludwig and others lead to ours, or to what comes nearest."""

from __future__ import annotations

import re

import pytest

from tests.helpers.command_line import Shell
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.other_names import _names, _tables, missing, suggested, suggested_option
from trnflow.flows.recipes.reference import settings_of
from trnflow.tasks.errors import ConfigError

KNOWN = {setting.name for setting in settings_of(settings.Recipe)}


def test_there_are_many_words_and_none_is_ours() -> None:
    tables = _tables()
    assert len(tables["names"]) + len(tables["missing"]) >= 200
    assert not tables["names"].keys() & tables["missing"].keys()
    assert tables["notes"].keys() <= tables["names"].keys()


@pytest.mark.parametrize("name", _tables()["names"])
def test_a_word_leads_to_settings_that_exist(name: str) -> None:
    choice = suggested((name,), settings.Recipe).partition(" (")[0]
    assert choice and set(choice.split(" or ")) <= KNOWN
    for setting in (name, f"train.{name}"):
        if setting not in KNOWN:
            assert refused(setting).fix.startswith("did you mean ")


@pytest.mark.parametrize("name", _tables()["missing"])
def test_what_is_not_here_says_what_comes_nearest(name: str) -> None:
    nearest = missing(name)
    assert nearest.startswith(f"trnflow has no {name}: ")
    for setting in {name, f"train.{name}"} - KNOWN:
        assert refused(setting).fix == nearest


def test_hints_name_settings_that_exist() -> None:
    texts = [text for table in ("notes", "missing", "options") for text in _tables()[table].values()]
    named = {setting for text in texts for setting in re.findall(r"\b[a-z_]+(?:\.[a-z_]+)+", text)}
    assert len(named) > 5 and named - {*_names(settings.Recipe)} == {"model.config.model_type"}  # transformers' own


def refused(setting: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        settings.load("demo", [f"{setting}=1"])
    return caught.value


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("per_device_train_batch_size", "train.micro_batch (global_batch counts all devices together)"),
        ("gradient_checkpointing", "train.remat"),
        ("num_train_epochs", "train.epochs"),
        ("report_to", "tracking.also ([tensorboard, wandb, trackio], beside MLflow)"),
        ("resume_from", "train.warm_start_from (a killed run resumes by itself; this begins with an earlier model)"),
        ("packing", "pack.strategy (bfd packs rows without cutting them)"),
        ("sequence_len", "tokenize.max_length"),
        ("lora_r", "train.lora.rank"),
        ("load_best_model_at_end", "train.keep_best"),
    ],
)
def test_the_best_known_words(word: str, says: str) -> None:
    assert suggested((word,), settings.Recipe) == says


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--gpu", "--on NAME runs on a GPU"),
        ("--learning_rate", "settings are given without dashes: train.learning_rate=VALUE"),
        ("--num-train-epochs", "train.epochs=VALUE"),
        ("--load_in_4bit", "trnflow has no load_in_4bit: train.lora.base_dtype=nf4"),
        ("--grpo", "trnflow has no grpo: no reinforcement learning: rank answers beforehand"),
    ],
)
def test_an_option_of_another_tool_leads_to_ours(trnflow: Shell, option: str, says: str) -> None:
    done = trnflow("run", "demo", option)
    assert done.returncode == 2 and says in done.stderr


def test_settings_describes_what_is_not_here(trnflow: Shell) -> None:
    assert "train.objective=dpo trains on pairs" in trnflow.error("settings", "grpo", code=2)


def test_several_unknown_settings_have_a_line_each_with_its_own_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        settings.load("demo", ["train.num_train_epochs=1", "data.dataset=a", "train.use_galore=true", "train.epochs=x"])
    assert sorted(caught.value.message.splitlines()) == [
        "override data.dataset: data.dataset is not a setting: did you mean data.source?",
        "override train.epochs: train.epochs can't be 'x': it takes a whole number from 1 to 1,000,000,000 or auto: "
        "change train.epochs",
        "override train.num_train_epochs: train.num_train_epochs is not a setting: did you mean train.epochs?",
        "override train.use_galore: train.use_galore is not a setting: trnflow has no use_galore: no low-rank gradients: "
        "train.method=lora takes less memory",
    ]
    assert caught.value.fix == "correct each line as it says"


def test_answers_about_preferences_name_their_objectives() -> None:
    for name in ("rl", "stage"):
        assert "dpo" in missing(name) and "kto" in missing(name) and "reward" in missing(name)


def test_an_option_with_its_value_leads_to_ours_too() -> None:
    said = "settings are given without dashes: train.learning_rate=VALUE"
    assert suggested_option("--learning_rate=1e-4", settings.Recipe) == said
    assert suggested_option("--no-such-option=1", settings.Recipe) == ""
