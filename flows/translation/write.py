"""Write a translated config as a recipe file, and say what became of each key."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from trnflow.flows.authoring.write import flow, given_settings
from trnflow.flows.recipes.files import recipe_names
from trnflow.flows.recipes.other_programs import AXOLOTL, LLAMA_FACTORY, LLAMA_FACTORY_V1, program_of
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.recipes.schema import Tree, merge
from trnflow.flows.recipes.yaml_tree import BYTES, read_yaml
from trnflow.flows.translation import axolotl, llama_factory
from trnflow.flows.translation.translation import Translation, plain
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.terminal import one_line

PROGRAMS: dict[str, Callable[[Translation], None]] = {
    AXOLOTL: axolotl.translate,
    LLAMA_FACTORY: llama_factory.translate,
}
SECTIONS = ("data", "format", "model", "tokenize", "pack", "train")
BASE = ["base/store/local", "base/launch/local"]
WIDTH = 34


def translated(file: Path, overrides: list[str]) -> Translation:
    """Translate another program's config. Raises ConfigError for a file that is none, or that trnflow can't train."""
    try:
        with file.open("rb") as stream:
            # what is larger is refused by `read_yaml`
            data = stream.read(BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror}", "check the path") from error
    tree, lines = read_yaml(data, str(file))
    program = program_of(tree)
    if program == LLAMA_FACTORY_V1:
        raise ConfigError(
            f"{file} is a config of LLaMA-Factory's v1, which is not translated",
            "translate the same run's config of version 0.9 (model_name_or_path, stage), or use `trnflow new DATA`",
        )
    if program not in PROGRAMS:
        raise ConfigError(
            f"{file} is neither data nor a config of axolotl or LLaMA-Factory",
            "a recipe needs no `new`: `trnflow run` takes it",
        )
    given = given_settings(overrides)
    translation = Translation(program, file, tree, lines, given, name_beside(file, given))
    PROGRAMS[program](translation)
    merge(translation.settings, given, Recipe)
    translation.settings.pop("name", None)
    return translation


def name_beside(file: Path, given: Tree) -> str:
    """Return the recipe's name: the user's, else that of the config, which is not overwritten."""
    theirs = "".join(c if c.isalnum() or c in "-_" else "-" for c in file.stem).strip("-")
    # files of the recipe have longer names
    stem = str(given.get("name") or theirs.encode()[:120].decode(errors="ignore") or "mine")
    taken = stem in recipe_names() or os.path.lexists(f"{stem}.yaml")
    return f"{stem}-recipe" if taken and not given.get("name") else stem


def recipe_text(t: Translation) -> str:
    """Return the recipe as YAML, with the key of theirs beside each setting."""
    lines = [
        f"# Written by `trnflow new {one_line(t.file.name)}` from a config of {t.program}. Beside each setting: its key there.",
        *(
            f"# not translated: {one_line(f'{key}: {plain(entry.value)}: {entry.text}')}"
            for key, entry in t.of("not translated")
        ),
        *(f"# {one_line(note)}" for note in t.notes),
        f"extends: {flow(BASE)}   # --on NAME takes other hardware",
    ]
    for section in (*SECTIONS, *(name for name in t.settings if name not in SECTIONS)):
        settings = t.settings.get(section, {})
        if not isinstance(settings, dict):
            lines.append(f"{section}: {flow(settings)}")
            continue
        lines.append(f"{section}:{'' if settings else ' {}'}")
        for name, value in settings.items():
            below = [why for setting, why in t.why.items() if setting.startswith(f"{section}.{name}.")]
            lines += _setting(name, value, t.why.get(f"{section}.{name}") or ", ".join(dict.fromkeys(below)))
    return "\n".join(lines) + "\n"


def _setting(name: str, value: Any, why: str) -> list[str]:
    beside = f"   # {one_line(why)}" if why else ""
    if isinstance(value, str) and "\n" in value:
        block = yaml.safe_dump({name: value}, default_style="|", allow_unicode=True).partition(": ")[2]
        if block.startswith("|"):
            head, *rest = block.rstrip("\n").split("\n") if not block.startswith("|+") else block.split("\n")
            lines = [f"  {name}: {head}{beside}", *(f"  {line}" if line else "" for line in rest)]
            # a block can't say each text
            if _reads_as("\n".join(lines) + "\n", {name: value}):
                return lines
    return [f"  {name}: {flow(value)}{beside}"]


def _reads_as(text: str, tree: Tree) -> bool:
    try:
        return bool(yaml.safe_load(text) == tree)
    except yaml.YAMLError:
        return False


def table(t: Translation) -> list[str]:
    """Return lines that say what became of each key."""
    groups = {outcome: [*t.of(outcome)] for outcome in ("translated", "no effect", "not translated")}
    lines = [f"a config of {t.program}: {sum(map(len, groups.values()))} keys"]
    lines.append(f"translated: {len(groups['translated'])}")
    lines += [f"  {key:<{WIDTH}} {entry.text}" for key, entry in groups["translated"]]
    theirs = [name for name, why in t.why.items() if "default" in why]
    if theirs:
        lines.append(f"from {t.program}'s defaults, where trnflow's differ: {len(theirs)}")
        lines += [f"  {name:<{WIDTH}} {plain(t.get(name))}" for name in theirs]
    lines.append(f"no effect here: {len(groups['no effect'])}")
    by_reason = sorted(groups["no effect"], key=lambda pair: pair[1].text)
    for why, pairs in groupby(by_reason, key=lambda pair: pair[1].text):
        lines.append(f"  {', '.join(key for key, _ in pairs)}: {why}")
    lines.append(f"not translated: {len(groups['not translated'])}")
    lines += [f"  {key}: {plain(entry.value)}: {entry.text}" for key, entry in groups["not translated"]]
    return lines + [f"note: {note}" for note in t.notes]
