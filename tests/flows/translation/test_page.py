"""docs/coming-from.md: what `trnflow new` makes of its configs is what the page shows, and its recipes load."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.translation import axolotl, llama_factory, write
from trnflow.flows.translation.templates import AXOLOTL, LLAMA_FACTORY
from trnflow.flows.translation.translation import Table

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


def untranslated(program: str, kind: str, table: Table) -> str:
    """The page's row of keys of a kind. PREFIX_* stands for three or more, if no key that begins so is translated."""
    keys = sorted(key for key, rule in table.items() if rule.kind == kind)
    names = []
    for prefix, group in groupby(keys, key=lambda key: key.partition("_")[0]):
        alike = [*group]
        others = [rule.kind for key, rule in table.items() if key.startswith(f"{prefix}_")]
        names += [f"{prefix}_*"] if len(alike) > 2 and {*others} <= {"lacks", "refuses"} else alike
    return f"| {program} | {SAID[kind]} | {', '.join(f'`{name}`' for name in names)} |\n"


SAID = {"refuses": "refused", "lacks": "named"}


def test_the_page_lists_the_keys_that_are_not_translated() -> None:
    lines = [
        untranslated(program, kind, table)
        for program, table in (
            ("axolotl", axolotl.KEYS),
            ("its `datasets`", axolotl.DATASET),
            ("LLaMA-Factory", llama_factory.KEYS),
        )
        for kind in SAID
        if any(rule.kind == kind for rule in table.values())
    ]
    section = PAGE.partition("\n## Keys that are not translated\n")[2].partition("\n## ")[0]
    assert section.partition("|---|---|---|\n")[2].rstrip("\n") + "\n" == "".join(lines)


def test_the_templates_that_the_page_names_are_there() -> None:
    assert f"{len(AXOLOTL)} of axolotl's, such as `chatml`, `llama3` and `gemma3`" in PAGE
    assert {"chatml", "llama3", "gemma3"} <= AXOLOTL.keys()
    listed = PAGE.partition("- `template`: ")[2].partition(" are written")[0]
    assert {*re.findall(r"`(\w+)`", listed)} == LLAMA_FACTORY.keys()
