"""Recipes and overrides that are wrong or hostile: each is one clear error with exit code 2, and names what the user wrote."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from tests.helpers.command_line import Shell
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.schema import config_in, kinds_of, table_in
from trnflow.tasks.errors import ConfigError, ModelError
from trnflow.tasks.sources.model_source import ModelConfig, model_source
from trnflow.tasks.sources.resolver import Resolver

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
MERGES = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))
HOSTILE = {
    "not UTF-8": (b"extends: demo\ndescription: caf\xe9\n", "bad.yaml:2: byte 0xe9 is not UTF-8"),
    "UTF-16": ("extends: demo\n".encode("utf-16"), "bad.yaml:1: byte 0xff is not UTF-8"),
    "extends a number": (b"name: x\nextends: 5\n", "bad.yaml:2: extends names no recipe: 5"),
    "extends nothing": (b"extends:\n", "bad.yaml:1: extends names no recipe: null"),
    "extends a mapping": (b"extends: [demo, {a: b}]\n", "bad.yaml:1: extends names no recipe: a mapping"),
    "an alias of itself": (b"extends: demo\ndata: &a {text: *a}\n", "bad.yaml:2: an alias (*name) is inside"),
    "a merge of itself": (b"extends: demo\ndata: &a\n  <<: *a\n", "bad.yaml:2: an alias (*name) is inside"),
    "a bomb": (BOMB.encode(), "aliases (*name) make more than 100,000 values"),
    "a bomb of merges": (MERGES.encode(), "aliases (*name) make more than 100,000 values"),
    "deep lists": (b"data: " + b"[" * 100_000, "bad.yaml:1: mappings and lists are nested more than 50 deep"),
    "deep mappings": (b"".join(b" " * n + b"a:\n" for n in range(1_000)), "nested more than 50 deep"),
    "a huge number": (b"train: {seed: " + b"9" * 5_000 + b"}\n", "bad.yaml:1: not valid YAML: the value is not of its type"),
    "a date that is none": (b"extends: demo\nformat: {date: 2024-13-45}\n", "bad.yaml:2: format.date: "),
    "a set": (b"extends: demo\ndata:\n  text: !!set {a, b}\n", "bad.yaml:3: a recipe holds no value of the type set"),
    "an odd tag": (b"extends: demo\ntrain: {epochs: !!int x}\n", "bad.yaml:2: not valid YAML: the value is not of its type"),
    "no number": (b"model: {config: {hidden_size: .nan}}\n", "bad.yaml:1: not valid YAML: the value is no finite number"),
    "an octal number": (b"train: {seed: 010}\n", "bad.yaml:1: not valid YAML: the value is one of YAML 1.1's numbers"),
    "a list for a name": (b"extends: demo\n? [a]\n: b\n", "bad.yaml:1: a name is a list or a mapping"),
    "a setting twice": (b"extends: demo\ntrain: {seed: 1, seed: 2}\n", "bad.yaml:2: train.seed is set twice"),
    "too long": (b"# " + b"x" * (1 << 20), "bad.yaml has more than 1,048,576 bytes"),
    "two documents": (b"extends: demo\n---\nextends: demo\n", "bad.yaml"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "says"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_one_clear_error(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "bad.yaml").write_bytes(data)
    assert says in refused(str(tmp_path / "bad.yaml")).message


def test_a_process_survives_what_is_nested_deeply(trnflow: Shell) -> None:
    """PyYAML's own reader in C ends the process."""
    (trnflow.folder / "bad.yaml").write_bytes(b"data: " + b"[" * 100_000)
    assert "nested more than 50 deep" in trnflow.error("config", "bad.yaml", code=2)
    assert "override data.text: mappings" in trnflow.error("config", "demo", "data.text=" + "[" * 100_000, code=2)


def test_lora_s_settings_without_its_method_name_the_setting_that_is_missing() -> None:
    error = refused("demo", "train.lora.rank=4")
    assert (
        "lora is set, and method is full" in error.message and error.fix == "set train.method=lora, or train.lora=null"
    )


def test_a_file_that_stands_between_is_named(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_bytes(b"description: caf\xe9\n")
    (tmp_path / "bad.yaml").write_text("extends: base.yaml\n")
    assert "base.yaml:1: byte 0xe9" in refused(str(tmp_path / "bad.yaml")).message
    for count in range(60):
        (tmp_path / f"r{count}.yaml").write_text(f"extends: r{count + 1}.yaml\n")
    assert "extends recipes more than 50 deep" in refused(str(tmp_path / "r0.yaml")).message


def test_recipes_that_multiply_and_files_without_an_end_are_refused_at_once(tmp_path: Path) -> None:
    for count in range(40):
        (tmp_path / f"r{count}.yaml").write_text(f"extends: [{', '.join([f'r{count + 1}.yaml'] * 3)}]\n")
    (tmp_path / "r40.yaml").write_text("extends: classify\n")
    assert "r0.yaml extends more than 100 recipes" in refused(str(tmp_path / "r0.yaml")).message
    (tmp_path / "large.yaml").write_text(f"description: {'x' * (1 << 19)}\n")
    (tmp_path / "bad.yaml").write_text("extends: [large.yaml, large.yaml, large.yaml, large.yaml]\n")
    assert "bad.yaml extends more than 100 recipes, or 2 MiB of them" in refused(str(tmp_path / "bad.yaml")).message
    with (tmp_path / "large.yaml").open("wb") as hole:
        hole.truncate(1 << 40)
    assert "large.yaml has more than 1,048,576 bytes" in refused(str(tmp_path / "bad.yaml")).message


def test_what_extends_names_is_a_file_here_and_nobody_is_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.socket.connect", None)
    for named in ("https://127.0.0.1:9/a.yaml", "s3://bucket/a.yaml", "file:///etc/a.yaml", "//server/share/a.yaml"):
        (tmp_path / "bad.yaml").write_text(f"extends: {named}\n")
        assert f"there is no recipe file {named}" in refused(str(tmp_path / "bad.yaml")).message
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    for named in ("pipe.yaml", "endless.yaml"):
        (tmp_path / "bad.yaml").write_text(f"extends: {named}\n")
        assert "there is no recipe file" in refused(str(tmp_path / "bad.yaml")).message


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("data.text=" + "[" * 60, "override data.text: mappings and lists are nested more than 50 deep"),
        ("data.text=&a [*a]", "override data.text: an alias (*name) is inside"),
        (".".join(["model", "config", *["a"] * 5_000]) + "=1", "there is no such setting"),
        ("train.epochs=!!int x", "override train.epochs: not valid YAML: the value is not of its type"),
        (
            "train.seed=1:30",
            "override train.seed: not valid YAML: the value is one of YAML 1.1's numbers, in which 010,",
        ),
        ("train.learning_rate=1_0.5", "override train.learning_rate: not valid YAML: the value is one of YAML 1.1's"),
        ("extends=5", "override extends: extends is not a setting"),
        ("data.name=\udce9", "override data.name: the value is not UTF-8"),
    ],
)
def test_a_hostile_override_is_one_clear_error(override: str, says: str) -> None:
    assert says in refused("demo", override).message


@pytest.mark.parametrize("name", ["x" * 5_000, "x" * 5_000 + ".yaml", "~nobody-here/x.yaml", "."])
def test_a_name_that_can_be_no_file_is_no_recipe(name: str) -> None:
    assert "there is no recipe" in refused(name).message


@pytest.mark.parametrize(
    ("override", "says", "fix"),
    [
        ("pack.chunk_length=1e12", "pack.chunk_length can't be 1e+12: it takes a whole number from 1 to 16,777,216", ""),
        ("train.max_steps=true", "train.max_steps can't be true", ""),
        ("train.learning_rate=false", "train.learning_rate can't be false", ""),
        ("data.limit={train: true}", "data.limit.train can't be true: it takes a whole number", ""),
        ("train.lora={layers_to_transform: [0, true]}", "train.lora.layers_to_transform.1 can't be true", ""),
        ("train.class_weights={a: true}", "train.class_weights.a can't be true: it takes a number above 0", ""),
        ("data.mix={a: {source: x, weight: true}, b: {source: y, weight: 1}}", "data.mix.a.weight can't be true", ""),
        ("train.threads=100000", "train.threads can't be 100000: it takes a whole number from 1 to 4,096 or null", ""),
        ("train.seed=1e23", "train.seed can't be 1e+23: it takes a whole number from 0 to 4,294,967,295", ""),
        ("tokenize.train.vocab_size=1e11", "it takes a whole number from 1 to 10,000,000", ""),
        ("model.config.vocab_size=1e11", "model.config: vocab_size is 1e+11, and may be 1,000,000,000 at most", ""),
        ("model.config.num_hidden_layers=1000000000", "num_hidden_layers is 1,000,000,000, and may be 10,000 at most", ""),
        ("train.epochs=three", "train.epochs can't be 'three': it takes a whole number", "change train.epochs"),
        ("train.engine=nativ", "train.engine can't be 'nativ': it takes one of xla, native", "did you mean train.engine=native?"),
        ("train.class_weights=balance", "one of auto, balanced or a mapping (name", "train.class_weights=balanced?"),
        ("train.class_weights={a: x}", "train.class_weights.a can't be 'x': it takes a number above 0", ""),
        ("train.micro_batch=-3", "train.micro_batch can't be -3: it takes a whole number from 1 to 1,048,576 or auto", ""),
        ("train.remat=-1", "train.remat can't be -1: it takes true or false or a whole number from 1", ""),
        ("data.split={tets: 0.1}", "data.split.tets is not a setting: its name must be one of", "data.split.test?"),
        ("data.split={test: 5}", "data.split.test can't be 5: it takes a number above 0, below 1", ""),
        ("data.limit={train: x}", "data.limit.train can't be 'x': it takes a whole number", ""),
        ("data.labels=[no, yes]", "data.labels.0 can't be false: it takes text", "or quote the value"),
        ("data.mix={a: 5}", "data.mix.a can't be 5: it takes settings below it (source, name", ""),
        ("train=5", "train can't be 5: it takes settings below it (method, lora", ""),
        ("model=org/base", "model can't be 'org/base': it takes settings below it (source", "did you mean model.source?"),
        ("launch.environment={KEY: [hidden]}", "launch.environment.KEY can't be its value: it takes text", ""),
        ("train.lora={rank: 4}", "train: lora is set, and method is full", "set train.method=lora, or train.lora=null"),
        ("train.global_batch=97", "must be a multiple of", "change train.global_batch or train.micro_batch"),
        ("name=''", "a recipe's name is made of letters, digits", "change name"),
        ("tokenize.train=2", "tokenize.train can't be 2: it takes settings below it (kind, vocab_size", ""),
    ],
)  # fmt: skip
def test_a_wrong_value_says_setting_value_and_what_is_allowed(override: str, says: str, fix: str) -> None:
    error = refused("demo", override)
    assert says in error.message and fix in error.fix
    assert "[hidden]" not in error.message


@pytest.mark.parametrize("name", ["", "-x", ".x", "a/../b", "/a", "a/", "a b", "a\x07b", "a\nb", "a//b", "a/-b"])
def test_a_recipes_name_is_one_wherever_it_enters(name: str, tmp_path: Path) -> None:
    (tmp_path / "named.yaml").write_text(f"extends: demo\nname: {json.dumps(name)}\n")
    assert "a recipe's name is made of" in refused(str(tmp_path / "named.yaml")).message
    assert "a recipe's name is made of" in refused("demo", f"name={json.dumps(name)}").message


def test_a_recipe_s_name_is_short_enough_to_name_files() -> None:
    assert "at most 200 bytes" in refused("demo", f"name={'ß' * 101}").message
    assert settings.load("demo", [f"name={'ß' * 100}"]).name == "ß" * 100


@pytest.mark.parametrize("name", ["a", "a/b", "a-b_c.1", "größe", "1"])
def test_a_recipe_may_be_named_so(name: str) -> None:
    assert settings.load("demo", [f"name='{name}'"]).name == name


def test_a_recipe_named_by_its_file_needs_a_name_too(tmp_path: Path) -> None:
    (tmp_path / "-x.yaml").write_text("extends: demo\n")
    assert "a recipe's name is made of" in refused(str(tmp_path / "-x.yaml")).message


def numbers(kind: type[BaseModel], above: str = "") -> Iterator[str]:
    """The settings below `kind` that take a number."""
    for name, field in kind.model_fields.items():
        inner, table = config_in(field.annotation), table_in(field.annotation)
        if inner is not None:
            yield from numbers(inner, f"{above}{name}.")
        elif table is not None:
            values = config_in(get_args(table)[1])
            if values is not None:
                yield from numbers(values, f"{above}{name}.x.")
        elif {int, float} & set(kinds_of(field.annotation)):
            yield f"{above}{name}"


def test_every_number_of_a_recipe_has_a_bound() -> None:
    found = list(numbers(settings.Recipe))
    assert len(found) > 40
    for setting in found:
        with pytest.raises(ConfigError, match=rf"{setting} can't be 1e\+300: it takes .*number.*(at most|below| to )"):
            settings.load("demo", [f"{setting}=1e300"])


@pytest.mark.parametrize("text", ["{" * 2 + "]", '{"a": ' * 100_000, "[]", "\xff"])
def test_a_models_config_that_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        model_source(ModelConfig(source=str(tmp_path)), Resolver(tmp_path / "home"))
    check_plain(str(caught.value))


def test_suggested_commands_can_be_pasted(trnflow: Shell) -> None:
    """The fix names the recipe's file and the overrides as they were given, quoted: what it says, done, is the fix."""
    (trnflow.folder / "my own.yaml").write_text("extends: mine.yaml\nname: mine\n")
    given = ["my own.yaml", "data.source=rows", "format.separator=' - '"]
    said = trnflow.error("get", given[0], "load_data", "dest", *given[1:], code=2)
    command = shlex.split(said.partition("fix: `")[2].partition("`")[0])
    assert command == ["trnflow", "run", *given, "--until", "load_data"]
    assert trnflow(*command[1:], "--direct", "tracking.enabled=false").returncode == 0
    assert trnflow("get", given[0], "load_data", "dest", *given[1:]).returncode == 0
    assert "`trnflow config 'my own.yaml'` shows" in trnflow.error("plan", "my own.yaml", "xyzzy=1", code=2)


def refused(name: str, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        settings.load(name, overrides)
    assert caught.value.exit_code == 2
    check_plain(str(caught.value))
    return caught.value


def check_plain(said: str) -> None:
    for word in ("Input should", "type=", "input_value", "pydantic", "Traceback", "unexpected", "validation error"):
        assert word not in said


@pytest.mark.parametrize("value", ["!hunter42 x", "{hunter42: [}"])
def test_a_value_of_the_environment_that_is_no_yaml_is_not_shown(value: str) -> None:
    error = refused("demo", f"launch.environment.TOKEN={value}")
    assert "override launch.environment.TOKEN: its value can't be read as YAML" in error.message
    assert "hunter42" not in f"{error.message} {error.fix}"
