"""docs/coming-from.md: what `trnflow new` makes of its configs is what the page shows, and its recipes load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.translation import write
from trnflow.flows.translation.templates import AXOLOTL, LLAMA_FACTORY

PAGE = (PROJECT / "docs/coming-from.md").read_text()


def blocks(program: str) -> list[str]:
    """The code blocks below a program's heading."""
    section = PAGE.partition(f"\n## {program}\n")[2].partition("\n## ")[0]
    return re.findall(r"```(?:yaml|json)\n(.*?)```", section, re.DOTALL)


@pytest.mark.parametrize("program", ["axolotl", "LLaMA-Factory"])
def test_the_recipe_beside_a_config_is_what_new_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.chdir(tmp_path)
    *info, config, recipe = blocks(program)
    (tmp_path / "data").mkdir()
    for text in info:
        (tmp_path / "data/dataset_info.json").write_text(text)
    (tmp_path / "config.yml").write_text(config)
    assert write.recipe_text(write.translated(Path("config.yml"), [])) == recipe
    (tmp_path / "mine.yaml").write_text(recipe)
    assert settings.load("mine.yaml").train.method == "lora"


@pytest.mark.parametrize("program", ["Trainer", "TRL", "sentence-transformers", "DVC"])
def test_the_recipe_beside_a_program_loads(tmp_path: Path, program: str) -> None:
    (tmp_path / "mine.yaml").write_text(blocks(program)[-1])
    assert settings.load(str(tmp_path / "mine.yaml")).train.epochs in (1, 2)


def test_the_templates_that_the_page_names_are_there() -> None:
    assert f"{len(AXOLOTL)} of axolotl's, such as `chatml`, `llama3` and `gemma3`" in PAGE
    assert {"chatml", "llama3", "gemma3"} <= AXOLOTL.keys()
    listed = PAGE.partition("- `template`: ")[2].partition(" are written")[0]
    assert {*re.findall(r"`(\w+)`", listed)} == LLAMA_FACTORY.keys()
