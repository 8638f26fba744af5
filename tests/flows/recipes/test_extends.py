"""What a recipe that extends another takes from it: settings, never its name; and how it empties what it inherits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command_line import Shell
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.schema import merge
from trnflow.tasks.errors import ConfigError

ONE_STAGE = ("--until", "load_data", "--direct", "tracking.enabled=false")


def test_a_recipe_that_extends_another_has_a_name_of_its_own_and_its_runs_are_kept_apart(trnflow: Shell) -> None:
    """By the inherited name `mine` the second recipe's run pushed the first's out of `gc --keep-last 1`."""
    for name, limit in (("few", 10), ("more", 20)):
        (trnflow.folder / f"{name}.yaml").write_text(f"extends: mine.yaml\ndata: {{limit: {limit}}}\n")
        trnflow.json("run", f"{name}.yaml", *ONE_STAGE)
    runs = trnflow.json("runs")["runs"]
    assert sorted(run["recipe"] for run in runs) == ["few", "more"]
    trnflow.json("gc", "--yes", "--keep-last", "1", "--keep-days", "0", "--grace", "0")
    for name in ("few", "more"):
        assert trnflow.json("plan", f"{name}.yaml")["stages"][0]["action"] == "hit"


def test_a_name_of_ones_own_stays_and_a_description_is_not_inherited(trnflow: Shell) -> None:
    (trnflow.folder / "few.yaml").write_text("name: chosen\nextends: mine.yaml\n")
    assert trnflow.json("config", "mine.yaml")["description"] == ""
    assert trnflow.json("config", "few.yaml")["name"] == "chosen"
    assert trnflow.json("config", "few.yaml", "name=other")["name"] == "other"
    assert trnflow.json("config", "few.yaml", "name=null")["name"] == "few"


def test_keys_do_not_contain_the_name(trnflow: Shell) -> None:
    (trnflow.folder / "few.yaml").write_text("extends: mine.yaml\n")
    first = trnflow.json("run", "mine.yaml", *ONE_STAGE)["stages"][0]
    again = trnflow.json("run", "few.yaml", *ONE_STAGE)["stages"][0]
    assert (again["action"], again["key"]) == ("hit", first["key"])


BASE = """
data: {source: rows, text: text, label: label, labels: [a, b], split: {validation: 0.1, test: 0.2}, dedupe: true}
format: {task: classification}
model:
  config: {model_type: bert, hidden_size: 64, rope_parameters: {rope_theta: 1.0, rope_type: default}}
  overrides: {hidden_act: relu}
tokenize: {max_length: 64, train: {vocab_size: 200, lowercase: true}}
pack: {chunk_length: 64}
train: {epochs: 7, max_steps: 40, class_weights: {a: 1, b: 2}}
launch: {environment: {A: "1", B: "2"}}
"""


@pytest.mark.parametrize(
    ("setting", "value", "becomes"),
    [
        ("data.split", "{}", {}),
        ("data.split", "{test: null}", {"validation": 0.1}),
        ("data.split.test", "null", {"validation": 0.1}),
        ("data.split", "null", None),
        ("data.split", "{train: null}", {"validation": 0.1, "test": 0.2}),
        ("data.labels", "null", None),
        ("data.dedupe", "null", False),
        ("train.epochs", "null", 3),
        ("train.max_steps", "null", None),
        ("train.class_weights", "{}", {}),
        ("train.class_weights", "{b: null}", {"a": 1.0}),
        ("train.class_weights", "null", None),
        ("launch.environment", "{}", {}),
        ("launch.environment.A", "null", {"B": "***"}),  # its values are hidden
        (
            "model.config",
            "{model_type: gpt2, hidden_size: null, rope_parameters: {}}",
            {"model_type": "gpt2", "rope_parameters": {}},
        ),
        ("model.config.rope_parameters.rope_type", "null", {"rope_theta": 1.0}),
        ("model.overrides", "{}", {}),
        ("model.overrides", "{hidden_act: null}", {}),
        ("model.overrides", "{sliding_window: null}", {"hidden_act": "relu", "sliding_window": None}),
        ("tokenize.train", "null", None),
        ("tokenize.train", "{}", {"kind": "wordpiece", "vocab_size": 8192, "lowercase": False}),
    ],
)
def test_what_is_inherited_can_be_emptied_by_a_file_and_by_an_override(
    tmp_path: Path, setting: str, value: str, becomes: object
) -> None:
    """`data.split={}` was ignored."""
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\n" + nested(setting, value))
    document = settings.load(str(tmp_path / "base.yaml"), [f"{setting}={value}"]).to_json()
    assert settings.load(str(tmp_path / "mine.yaml")).to_json() == document | {"name": "mine"}
    section, name, *rest = setting.split(".")
    found = document[section][name]
    assert (found[rest[0]] if rest[:1] == ["rope_parameters"] else found) == becomes


def test_one_of_a_mixture_can_be_left_out(tmp_path: Path) -> None:
    mix = "{a: {source: x}, b: {source: y}, c: {source: z}}"
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "mixed.yaml").write_text(f"extends: base.yaml\ndata: {{source: null, mix: {mix}}}\n")
    (tmp_path / "mine.yaml").write_text("extends: mixed.yaml\ndata: {mix: {b: null}}\n")
    assert list(settings.load(str(tmp_path / "mine.yaml")).data.mix or {}) == ["a", "c"]
    one = settings.load(str(tmp_path / "mixed.yaml"), ["data.mix=null", "data.source=rows"])
    assert (one.data.mix, one.data.source) == (None, "rows")


@pytest.mark.parametrize("text", ["train:", "train: {}", "train: null"])
def test_an_empty_section_is_an_error_that_says_to_remove_the_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"extends: demo\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        settings.load(str(tmp_path / "mine.yaml"))
    assert f"{tmp_path / 'mine.yaml'}:2: the section train is empty" in caught.value.message
    assert caught.value.fix.startswith("remove the line")


def test_an_empty_section_of_an_override_or_a_base_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"override train: the section train is empty\. Fix: leave it out"):
        settings.load("demo", ["train={}"])
    (tmp_path / "base.yaml").write_text("extends: demo\nexport:\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\n")
    with pytest.raises(ConfigError, match=r"base\.yaml:2: the section export is empty"):
        settings.load(str(tmp_path / "mine.yaml"))


def nested(setting: str, value: str) -> str:
    """`a.b=c` as YAML of a recipe file."""
    *above, last = setting.split(".")
    return "".join(f"{name}: {{" for name in above) + f"{last}: {value}" + "}" * len(above) + "\n"


def test_another_source_does_not_inherit_the_revision(tmp_path: Path) -> None:
    assert settings.load("classify").model.revision
    assert settings.load("classify", ["model.source=bert-base-uncased"]).model.revision is None
    (tmp_path / "mine.yaml").write_text("extends: classify\nmodel: {source: bert-base-uncased}\n")
    assert settings.load(str(tmp_path / "mine.yaml")).model.revision is None
    (tmp_path / "same.yaml").write_text("extends: classify\nmodel: {overrides: {hidden_dropout_prob: 0.0}}\n")
    assert settings.load(str(tmp_path / "same.yaml")).model.revision == settings.load("classify").model.revision


def test_null_removes_an_entry_of_a_table_also_where_entries_may_be_null() -> None:
    into = {"kept": 1, "gone": 2}
    merge(into, {"gone": None, "new": None}, dict[str, int | None])
    assert into == {"kept": 1, "new": None}
