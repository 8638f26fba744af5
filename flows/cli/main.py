"""The command line: `trnflow COMMAND RECIPE [section.setting=value ...]`.

Exit codes: 0 success, 1 a stage failed, 2 wrong usage or configuration, 130 interrupted. With --json one JSON document goes to
stdout, and all other text to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import traceback
from importlib.metadata import version
from types import FrameType
from typing import Any, NoReturn

from flows.cli import (
    accept,
    completion,
    history_commands,
    plan_commands,
    preview,
    recipe_commands,
    run_commands,
    service_commands,
    store_commands,
)
from flows.cli.model import champion_commands, predict, publish_commands, retrain_command
from flows.cli.output import exit_at_once, say_error
from flows.recipes.suggested_command import complete
from tasks.errors import Interrupted, TrnflowError, unexpected
from tasks.system.redaction import scrub_logs, scrubbed
from tasks.system.threads import abandoned

OVERRIDE = re.compile(r"[A-Za-z_][A-Za-z_0-9]*(\.[A-Za-z_0-9-]+)*=")


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code. arguments: the words after `trnflow`; None takes them from `sys.argv`."""
    overrides, rest, texts = _separated(sys.argv[1:] if arguments is None else arguments)
    options = _parsed(rest, texts)
    options.overrides = [*([f"on={options.on}"] if getattr(options, "on", None) else []), *overrides]
    scrub_logs()
    signal.signal(signal.SIGTERM, _interrupt)
    code = _call(options)
    if abandoned():
        exit_at_once(code)
    return code


def _call(options: argparse.Namespace) -> int:
    """Call the command that the options name and return its exit code. If the command raises, print the error."""
    try:
        return int(options.command(options))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return fail(Interrupted("interrupted", "run the same command again: finished stages are cached"), options)
    except TrnflowError as error:
        return fail(error, options)
    except Exception as error:
        found = unexpected(error)
        found.details = "".join(traceback.format_exception(error))
        return fail(found, options)


def fail(error: TrnflowError, options: argparse.Namespace) -> int:
    """Print an error and its fix on stderr, with --json also a JSON document on stdout; return the exit code of the
    error."""
    error = scrubbed(complete(error, options))
    if options.json:
        print(json.dumps({"schema": 1, "error": {"stage": error.stage or None, **error.to_json()}}))
    say_error(error)
    if options.debug:
        sys.stderr.write(error.details)
    return error.exit_code


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _separated(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Split arguments into (overrides, all others, what follows `--`): argparse can't take `section.setting=value` at any
    position. Nothing after `--` is an override."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given = arguments[:end]
    overrides = [text for text in given if OVERRIDE.match(text)]
    return overrides, [text for text in given if not OVERRIDE.match(text)], arguments[end + 1 :]


def _parsed(arguments: list[str], texts: list[str]) -> argparse.Namespace:
    """Parse arguments, without overrides. texts: what follows `--`, for a command that takes texts.

    argparse fills a list of texts from its first run of arguments alone, so texts after an option are added here."""
    top = parser()
    options, rest = top.parse_known_args(arguments)
    more = [*rest, *texts]
    if more and (not hasattr(options, "texts") or any(text.startswith("-") for text in rest)):
        top.error(f"unrecognized arguments: {' '.join(more)}")
    if more:
        options.texts += more
    return options


class _PrintVersion(argparse.Action):
    """Print the version of the installed package, which takes 4 ms to find, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any) -> NoReturn:
        print(f"trnflow {version('trnflow')}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of `trnflow` with all its commands."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    common.add_argument("--debug", action="store_true", help="print tracebacks")
    recipe = argparse.ArgumentParser(add_help=False, parents=[common])
    recipe.add_argument("recipe", help="a name (see `trnflow recipes`) or a YAML file")
    recipe.add_argument("--on", metavar="HARDWARE", help="run on this hardware, such as cpu, cpu-mesh or g5.xlarge")
    store = history_commands.store_parser(common)

    top = argparse.ArgumentParser(
        prog="trnflow",
        description="Fine-tune Hugging Face models in cacheable stages.",
        epilog="Any setting of a recipe can be overridden: `trnflow run demo train.epochs=3 data.source=./rows`.",
    )
    top.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    sub = top.add_subparsers(required=True, metavar="COMMAND")
    run_commands.add_commands(sub, recipe)
    plan_commands.add_commands(sub, recipe)
    preview.add_commands(sub, recipe)
    accept.add_commands(sub, recipe)
    predict.add_commands(sub, store)
    history_commands.add_commands(sub, store)
    store_commands.add_commands(sub, store)
    champion_commands.add_commands(sub, recipe, store)
    publish_commands.add_commands(sub, store)
    retrain_command.add_commands(sub, recipe)
    recipe_commands.add_commands(sub, common, recipe)
    service_commands.add_commands(sub, common)
    completion.add_commands(sub, common)
    return top
