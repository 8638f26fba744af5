from __future__ import annotations

from pathlib import Path

import pytest

from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.files import read_tree, recipe_names
from trnflow.tasks.errors import ConfigError

FILES = {
    "demo", "demo-llm", "bert-emotion", "bert-imdb", "distilbert-book-reviews", "llama2-7b-dolly", "llama2-7b-dolly-lora",
    "roberta-large-compiled", "classify", "multi-label", "regression", "token-classification", "reranker", "embedding",
    "instruct", "chat", "preference", "unpaired-preference",
}  # fmt: skip


def test_the_shipped_recipes_are_there_and_valid() -> None:
    assert set(recipe_names()) == FILES
    for name in FILES:
        recipe = settings.load(name)
        assert recipe.name == name
        assert recipe.description


def test_on_neuron_a_recipe_takes_a_process_a_core_or_asks_for_spmd_by_name() -> None:
    for name in ("bert-emotion", "bert-imdb"):
        assert settings.load(name).train.xla_processes == "per_device"
    for name in ("llama2-7b-dolly", "llama2-7b-dolly-lora"):
        assert settings.load(name).train.xla_processes == "one"
        assert "experimental" in settings.load(name).description
    error = refused("llama2-7b-dolly", "train.xla_processes=null")
    assert "train.xla_processes: tensor_parallel_size is 8" in error.message and "experimental there" in error.message


def test_a_recipe_extends_bases_deeply_and_wins_over_them(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("train: {epochs: 5, learning_rate: 1e-4}\ndata: {labels: [a, b, c]}\n")
    (tmp_path / "mine.yaml").write_text("extends: [base.yaml]\ntrain: {epochs: 7}\ndata: {labels: [x, y]}\n")
    read = read_tree(str(tmp_path / "mine.yaml")).with_overrides(["train.seed=3", "data.limit={train: 10}"])
    tree, origins = read.settings(), read.origins
    assert tree["train"] == {"epochs": 7, "learning_rate": 1e-4, "seed": 3}
    assert tree["data"] == {"labels": ["x", "y"], "limit": {"train": 10}}
    assert origins["train", "learning_rate"].endswith("base.yaml:1")
    assert origins["train", "epochs"].endswith("mine.yaml:2")


@pytest.mark.parametrize(
    ("text", "value"), [("5e-5", 5e-5), ("1E3", 1000.0), ("3", 3), ("true", True), ("null", None), ("a b", "a b")]
)
def test_overrides_are_yaml_with_scientific_numbers(text: str, value: object) -> None:
    tree = read_tree("demo").with_overrides([f"train.x={text}"]).settings()
    assert tree["train"]["x"] == value
    assert type(tree["train"]["x"]) is type(value)


def test_an_override_reaches_the_config() -> None:
    assert settings.load("demo", ["train.learning_rate=3e-5", "data.source=./here"]).train.learning_rate == 3e-5


def refused(name: str, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        settings.load(name, overrides)
    assert caught.value.exit_code == 2
    return caught.value


def test_a_misspelt_key_names_file_line_and_the_nearest_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: demo\ntrain:\n  epochs: 2\n  learning_rat: 3e-5\n")
    error = refused(str(path))
    assert f"{path}:4: train.learning_rat is not a setting" in error.message
    assert error.fix == "did you mean train.learning_rate?"
    error = refused("demo", "trian.epochs=2")
    assert "override trian.epochs: trian is not a setting" in error.message
    assert error.fix == "did you mean train?"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.epochs=three", "train.epochs"),
        ("train.learning_rate=-1", "train.learning_rate"),
        ("train.engine=cuda", "train.engine"),
        ("train.devices=3 train.tensor_parallel_size=2", "multiple of tensor_parallel_size"),
        ("train=5", "train"),
        ("pack.strategy=best", "pack.strategy"),
    ],
)
def test_a_wrong_type_or_value_names_the_setting(override: str, says: str) -> None:
    error = refused("demo", *override.split(" "))
    assert says in error.message
    assert "\n" not in str(error)


def test_an_unknown_recipe_suggests_the_nearest() -> None:
    assert "bert-emotion" in refused("bert-emotoin").fix
    assert "no recipe file" in refused("nowhere.yaml").message
    assert "no recipe" in refused("../secrets").message


@pytest.mark.parametrize("text", ["train: [", "- a list", "a: 1\na: 2\n", ""])
def test_bad_yaml_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert "bad.yaml" in refused(str(path)).message


def test_a_circle_of_bases_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    assert "extends itself" in refused(str(tmp_path / "a.yaml")).message


def test_yaml_can_not_make_objects(tmp_path: Path) -> None:
    path = tmp_path / "evil.yaml"
    path.write_text("extends: demo\nname: !!python/object/apply:os.getcwd []\n")
    refused(str(path))


def test_a_recipe_that_runs_elsewhere_has_no_price() -> None:
    assert settings.load("bert-emotion").price_per_hour == 1.34
    assert (
        settings.load("bert-emotion", ["train.engine=native", "train.device=cpu", "train.devices=1"]).price_per_hour
        == 0
    )
    assert settings.load("demo", ["hardware.price_per_hour=2"]).price_per_hour == 2


@pytest.mark.parametrize(("kind", "price", "memory"), [("null", 2.0, 7.0), ("cpu", 2.0, 7.0), ("cuda", 0.0, None)])
def test_price_and_memory_of_a_machine_count_for_its_kind_of_device(
    kind: str, price: float, memory: float | None
) -> None:
    hardware = f"hardware={{name: mine, price_per_hour: 2, memory_gib: 7, device: {kind}}}"
    recipe = settings.load("demo", [hardware, "train.device=cpu"])
    assert (recipe.price_per_hour, recipe.training.device_memory_gib) == (price, memory)
    own = settings.load("demo", [hardware, "train.device=cpu", "train.device_memory_gib=3"])
    assert own.training.device_memory_gib == 3
