"""All examples of axolotl 0.19.0 and LLaMA-Factory 0.9.5: each becomes a recipe that loads, or one error that names the key."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from trnflow.flows.authoring.write import write_recipe
from trnflow.flows.recipes.other_programs import AXOLOTL, LLAMA_FACTORY, LLAMA_FACTORY_V1, program_of
from trnflow.flows.translation import write
from trnflow.tasks.errors import ConfigError

CONFIGS = Path(__file__).parent / "configs"
FILES = sorted([*CONFIGS.rglob("*.yaml"), *CONFIGS.rglob("*.yml")])
NESTED = ("datasets", "pretraining_dataset")


def test_each_example_is_known_by_its_keys() -> None:
    kinds = Counter(program_of(yaml.safe_load(file.read_bytes())) for file in FILES)
    assert kinds == {AXOLOTL: 228, LLAMA_FACTORY: 58, LLAMA_FACTORY_V1: 13}


def keys_of(tree: dict[str, Any]) -> set[str]:
    """The keys of a config, those of data sets one by one."""
    keys = set()
    for key, value in tree.items():
        if key in NESTED and isinstance(value, list) and any(value):
            keys |= {f"{key}.{at}.{name}" for at, entry in enumerate(value) for name in entry}
        else:
            keys.add(key)
    return keys


def test_no_key_of_an_example_is_absent_and_what_is_refused_is_named() -> None:
    outcomes, refused = Counter[str](), 0
    for file in FILES:
        tree = yaml.safe_load(file.read_bytes())
        try:
            t = write.translated(file, [])
        except ConfigError as error:
            # the key, its line and what to do instead
            assert file.name in error.message and error.fix, file
            assert any(key in error.message for key in tree) or "YAML" in error.message or "v1" in error.message, file
            refused += 1
            continue
        assert keys_of(tree) == {*t.entries}, file
        outcomes.update(entry.outcome for entry in t.entries.values())
        unknown = {key for key, entry in t.entries.items() if "knows no such setting" in entry.text}
        assert unknown <= {"context_parapllel_size"}  # as it is written there
        text = write.recipe_text(t)
        assert all(f"# not translated: {key}: " in text for key, _ in t.of("not translated")), file
    assert refused == REFUSED and outcomes == OUTCOMES


REFUSED = 128
OUTCOMES = {"translated": 3732, "no effect": 2745, "not translated": 290}
"""Of the others' keys: what a change of the tables moves is seen here."""


def test_what_an_example_becomes_is_a_recipe_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each seventh example; all of them nightly."""
    load_examples(FILES[::7], tmp_path, monkeypatch)


@pytest.mark.nightly
def test_what_all_examples_become_are_recipes_that_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_examples(FILES, tmp_path, monkeypatch)


def load_examples(files: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for at, file in enumerate(files):
        try:
            t = write.translated(file, [f"name=recipe_{at}"])
        except ConfigError:
            continue
        for path, code in t.functions.items():
            path.write_text(code)
        recipe = write_recipe(Path(f"recipe_{at}.yaml"), write.recipe_text(t))
        assert recipe.model.source == (t.tree.get("base_model") or t.tree["model_name_or_path"])
