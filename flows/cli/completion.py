"""`trnflow completion bash|zsh`: print a completion script."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.finetune import STAGES
from trnflow.flows.recipes.files import hardware_names, recipe_names
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.recipes.reference import settings_of
from trnflow.flows.recipes.schema import ANY_NAME, ANY_NUMBER

# zsh runs bash's completion functions after this line
ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"


def add_commands(sub: Any, common: ArgumentParser) -> None:
    shell = add_command(sub, "completion", completion, common, "print a completion script for a shell")
    shell.add_argument("shell", choices=("bash", "zsh"))
    shell.set_defaults(commands=sub.choices)


def completion(options: Namespace) -> int:
    """Print the completion script of a shell; return exit code 0."""
    sys.stdout.write(script(options.shell, options.commands))
    return 0


def script(shell: str, commands: dict[str, ArgumentParser]) -> str:
    """Return the script by which a shell completes names, options, recipes, stages and settings."""
    # the script holds all names: completing starts no process
    names = [setting.name for setting in settings_of(Recipe) if not {ANY_NAME, ANY_NUMBER} & {*setting.name.split(".")}]
    sections = {name.rpartition(".")[0] for name in names}
    words = {name: " ".join(parser._option_string_actions) for name, parser in commands.items()}
    with_recipe = [name for name, parser in commands.items() if any(a.dest == "recipe" for a in parser._actions)]
    values = {
        "shell": shell,
        "commands": " ".join(commands),
        "options": "\n".join(f'        {name}) words="{options}" ;;' for name, options in words.items()),
        "with_recipe": "|".join(with_recipe),
        "recipes": " ".join(recipe_names()),
        "stages": " ".join(STAGES),
        "hardware": " ".join(hardware_names()),
        "settings": " ".join(names),
        "overrides": " ".join(f"{name}=" for name in names if name not in sections),
    }
    text = Path(__file__).with_suffix(".bash").read_text(encoding="utf-8")
    return (ZSH if shell == "zsh" else "") + re.sub("@([a-z_]+)@", lambda match: values[match[1]], text)
