"""The commands about recipe files: `config`, `recipes`, `settings` and `schema`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import Any

import yaml

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.output import emit, emit_json
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.files import nearest, read_tree, recipe_names
from trnflow.flows.recipes.other_names import missing, suggested
from trnflow.flows.recipes.reference import Setting, json_schema, markdown, settings_of
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, TrnflowError
from trnflow.tasks.training.automatic import open_settings


def add_commands(sub: Any, common: ArgumentParser, recipe: ArgumentParser) -> None:
    add_command(sub, "config", config, recipe, "print a recipe with every setting filled in")
    add_command(sub, "recipes", recipes, common, "list the shipped recipes")
    described = add_command(
        sub, "settings", describe_settings, common, "describe all settings, a section or one setting"
    )
    described.add_argument("name", nargs="?", metavar="SECTION|NAME", help="such as train, or train.learning_rate")
    described.add_argument("--markdown", action="store_true", help="print the page docs/settings.md")
    add_command(sub, "schema", print_schema, common, "print the JSON schema of recipe files, for editors")


def describe_settings(options: Namespace) -> int:
    """Print meaning, allowed values and default of settings; with --markdown docs/settings.md."""
    if options.markdown:
        sys.stdout.write(markdown(settings.Recipe))
        return 0
    chosen = _named(options.name)
    emit(
        options,
        {"settings": [setting._asdict() for setting in chosen]},
        *"\n\n".join(map(_described, chosen)).split("\n"),
    )
    return 0


def _named(name: str | None) -> list[Setting]:
    """Return the settings of a section, one by its dotted name, or all that end in this word. Raises ConfigError."""
    known = list(settings_of(settings.Recipe))
    if name is None:
        return known
    chosen = [setting for setting in known if setting.name == name or setting.name.startswith(f"{name}.")]
    chosen = chosen or [setting for setting in known if setting.name.split(".")[-1] == name]
    if not chosen:
        close = suggested((name,), settings.Recipe) or nearest(name, [setting.name for setting in known])
        fix = f"did you mean {close}?" if close else "`trnflow settings` lists all of them"
        raise ConfigError(f"there is no setting {name}", missing(name) or fix)
    return chosen


def _described(setting: Setting) -> str:
    parts = (("", setting.meaning), ("takes: ", setting.takes), ("default: ", setting.default))
    return "\n".join([setting.name, *(f"    {label}{text}" for label, text in parts if text)])


def print_schema(options: Namespace) -> int:
    """Print the JSON schema of recipe files."""
    emit_json(json_schema(settings.Recipe))
    return 0


def config(options: Namespace) -> int:
    """Print a recipe with every setting filled in, secrets hidden."""
    recipe = settings.load(options.recipe, options.overrides)
    document, found = recipe.to_json(), chosen(recipe)
    document["train"] |= found
    if options.json:
        emit_json(document)
    else:
        names = ", ".join(f"train.{name}" for name in found)
        sys.stdout.write(f"# auto, chosen for the rows in the store: {names}\n" if found else "")
        is_utf = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
        sys.stdout.write(yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=is_utf))
    return 0


def chosen(recipe: settings.Recipe) -> Meta:
    """Return {setting: value} of the settings of training that are `auto`, if the store has the packed rows."""
    if not open_settings(recipe.train):
        return {}
    from trnflow.flows.finetune import finetune
    from trnflow.flows.runner.context import open_store, plan_of

    # without rows, a model or a store the settings stay as they are; `plan` says why
    with suppress(TrnflowError):
        return plan_of(finetune(recipe), recipe, open_store(recipe)).roles["training"].chosen
    return {}


def recipes(options: Namespace) -> int:
    """Print name and description of each shipped recipe."""
    descriptions = {name: str(read_tree(name).tree.get("description", "")) for name in recipe_names()}
    document = {"recipes": [{"name": name, "description": text} for name, text in descriptions.items()]}
    emit(options, document, *(f"{name:<24} {text}" for name, text in descriptions.items()))
    return 0
