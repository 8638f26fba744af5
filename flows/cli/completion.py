"""`trnflow completion bash|zsh`: print a completion script."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from typing import Any

from trnflow.flows.finetune import STAGES
from trnflow.flows.recipes.files import hardware_names, recipe_names
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.recipes.reference import ANY_NAME, ANY_NUMBER, settings_of

# zsh runs bash's completion functions after this line
ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"

BASH = """\
# trnflow's completion: `source <(trnflow completion {shell})` in a shell, or its output in a file that the shell reads.
_trnflow() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}" words=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands} --version --help" -- "$word"))
        return
    fi
    case "$before" in
        --until|--force) COMPREPLY=($(compgen -W "{stages}" -- "$word")); return ;;
        --on) COMPREPLY=($(compgen -W "{hardware}" -- "$word")); return ;;
    esac
    case "$command" in
{options}
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$words" -- "$word")); return ;;
    esac
    case "$command" in
        completion) COMPREPLY=($(compgen -W "bash zsh" -- "$word")); return ;;
        settings) COMPREPLY=($(compgen -W "{settings}" -- "$word")); return ;;
        {with_recipe}) ;;
        *) return ;;
    esac
    if [ "$COMP_CWORD" -eq 2 ]; then
        COMPREPLY=($(compgen -W "{recipes}" -- "$word") $(compgen -f -X '!*.y*ml' -- "$word"))
        return
    fi
    case "$command" in
        explain|show|get|accept) [ "$COMP_CWORD" -eq 3 ] && COMPREPLY=($(compgen -W "{stages}" -- "$word")) && return ;;
    esac
    COMPREPLY=($(compgen -W "{overrides}" -- "$word"))
    compopt -o nospace 2>/dev/null
}}
complete -o bashdefault -F _trnflow trnflow
"""


def add_commands(sub: Any, common: argparse.ArgumentParser) -> None:
    shell = sub.add_parser("completion", parents=[common], help="print a completion script for a shell")
    shell.add_argument("shell", choices=("bash", "zsh"))
    shell.set_defaults(command=completion, commands=sub.choices)


def completion(options: Namespace) -> int:
    """Print the completion script of a shell; return exit code 0."""
    sys.stdout.write(script(options.shell, options.commands))
    return 0


def script(shell: str, commands: dict[str, argparse.ArgumentParser]) -> str:
    """Return the script by which a shell completes names, options, recipes, stages and settings."""
    # the script holds all names: completing starts no process
    names = [setting.name for setting in settings_of(Recipe) if not {ANY_NAME, ANY_NUMBER} & {*setting.name.split(".")}]
    sections = {name.rpartition(".")[0] for name in names}
    words = {name: " ".join(parser._option_string_actions) for name, parser in commands.items()}
    with_recipe = [name for name, parser in commands.items() if any(a.dest == "recipe" for a in parser._actions)]
    text = BASH.format(
        shell=shell,
        commands=" ".join(commands),
        options="\n".join(f'        {name}) words="{options}" ;;' for name, options in words.items()),
        with_recipe="|".join(with_recipe),
        recipes=" ".join(recipe_names()),
        stages=" ".join(STAGES),
        hardware=" ".join(hardware_names()),
        settings=" ".join(names),
        overrides=" ".join(f"{name}=" for name in names if name not in sections),
    )
    return (ZSH if shell == "zsh" else "") + text
