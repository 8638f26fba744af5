"""Commands and arguments, as the modules of commands add them."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _SubParsersAction
from collections.abc import Callable
from typing import TypeVar

N = TypeVar("N", int, float)

RUN_NAMES = "a run's id, its beginning, `last` or `last~N`; a digest; RECIPE@champion"


OR_RECIPE = "a recipe, whose newest run counts"


def add_command(
    sub: _SubParsersAction[ArgumentParser],
    name: str,
    command: Callable[[Namespace], int],
    parent: ArgumentParser,
    text: str,
    more: str = "",
) -> ArgumentParser:
    """Add a command with the arguments of `parent`; return its parser. text: its line of help; more: of its own help."""
    parser = sub.add_parser(name, parents=[parent], help=text, description=f"{text}{more}")
    parser.set_defaults(command=command)
    return parser


def number(kind: type[N], low: float, high: float = sys.float_info.max) -> Callable[[str], N]:
    """Return the `type` of an argument that is a number from `low` to `high`."""

    def parse(text: str) -> N:
        value = kind(text)
        if not low <= value <= high:
            raise ArgumentTypeError(f"a number from {low:g} {'on' if high == sys.float_info.max else f'to {high:g}'}")
        return value

    return parse


def add_run(parser: ArgumentParser, names: str = RUN_NAMES) -> None:
    """Add the argument `run`, by default the last one."""
    parser.add_argument("run", metavar="RUN", nargs="?", default="last", help=names)


def add_model(parser: ArgumentParser) -> None:
    """Add the argument `recipe`, which may name any model, and `--on`."""
    names = "a recipe, RECIPE@champion, RECIPE@N or RECIPE@newest; a run or `last`; a digest"
    parser.add_argument("recipe", metavar="MODEL", help=names)
    parser.add_argument("--on", metavar="HARDWARE", help="the model that was trained on this hardware")
