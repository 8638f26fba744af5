"""The command line: `trnflow COMMAND RECIPE [section.setting=value ...]`.

Exit codes: 0 ok, 1 a stage failed, 2 wrong usage or configuration, 130 interrupted. With --json one JSON document goes to
stdout; everything said to a person meanwhile goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import traceback
from types import FrameType
from typing import NoReturn

from flows import accept, commands, history, preview, upkeep
from flows.finetune import DATA_STAGES
from tasks.errors import Interrupted, ProcessFailed, TrnflowError

OVERRIDE = re.compile(r"[A-Za-z_]+(\.[A-Za-z_0-9-]+)*=")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    overrides, rest = _apart(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(rest)
    options.overrides = overrides
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return int(options.command(options))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return fail(Interrupted("interrupted", "run the same command again: finished stages hit"), options)
    except TrnflowError as error:
        return fail(error, options)
    except Exception as error:
        if options.debug:
            raise
        unexpected = ProcessFailed(
            f"unexpected {type(error).__name__}: {error}", "run it again with --debug and report it"
        )
        return fail(unexpected, options)


def fail(error: TrnflowError, options: argparse.Namespace) -> int:
    """Say what went wrong in one line (and as JSON, where asked); returns the exit code."""
    if options.json:
        print(json.dumps({"schema": 1, "error": {"stage": error.stage or None, **error.to_json()}}))
    commands.say_error(error)
    if options.debug:
        traceback.print_exception(error)
        sys.stderr.write(error.details)
    return error.exit_code


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _apart(arguments: list[str]) -> tuple[list[str], list[str]]:
    """(overrides, all else): `section.setting=value` may stand anywhere, which argparse can't do."""
    overrides = [text for text in arguments if OVERRIDE.match(text)]
    return overrides, [text for text in arguments if not OVERRIDE.match(text)]


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="one JSON document on stdout")
    common.add_argument("--debug", action="store_true", help="tracebacks")
    recipe = argparse.ArgumentParser(add_help=False, parents=[common])
    recipe.add_argument("recipe", help="a name (see `trnflow recipes`) or a YAML file")

    parser = argparse.ArgumentParser(
        prog="trnflow",
        description="Fine-tune Hugging Face models in cacheable stages.",
        epilog="Any setting of a recipe can be overridden: `trnflow run demo train.epochs=3 data.source=./rows`.",
    )
    sub = parser.add_subparsers(required=True, metavar="COMMAND")

    run = sub.add_parser("run", parents=[recipe], help="run a recipe; what is done already is not done again")
    run.add_argument("--until", metavar="STAGE", help="stop after this stage")
    run.add_argument("--force", metavar="STAGE", action="append", default=[], help="run this stage though it hits")
    run.add_argument("--direct", action="store_true", help="without Prefect")
    run.add_argument("--offline", action="store_true", help="never ask a hub: use the last resolution")
    run.set_defaults(command=commands.run)

    prepare = sub.add_parser("prepare", parents=[recipe], help="the data stages alone, before an accelerator is rented")
    prepare.add_argument("--force", metavar="STAGE", action="append", default=[], help="run this stage though it hits")
    prepare.add_argument("--direct", action="store_true", help="without Prefect")
    prepare.add_argument("--offline", action="store_true", help="never ask a hub: use the last resolution")
    prepare.set_defaults(command=commands.run, until=DATA_STAGES[-1])

    plan = sub.add_parser("plan", parents=[recipe], help="what would run, and why")
    plan.set_defaults(command=commands.plan)

    explain = sub.add_parser("explain", parents=[recipe], help="what a stage's key is made of, and what changed")
    explain.add_argument("stage")
    explain.set_defaults(command=commands.explain)

    show = sub.add_parser("show", parents=[recipe], help="the artifacts of a recipe, or all about one")
    show.add_argument("stage", nargs="?")
    show.set_defaults(command=commands.show)

    get = sub.add_parser("get", parents=[recipe], help="copy a stage's artifact to a folder of yours")
    get.add_argument("stage")
    get.add_argument("dest")
    get.set_defaults(command=commands.get)

    store = history.store_parser(common)
    history.add_commands(sub, store)
    upkeep.add_commands(sub, store)
    accept.add_commands(sub, recipe)
    preview.add_commands(sub, recipe)

    config = sub.add_parser("config", parents=[recipe], help="the resolved recipe")
    config.set_defaults(command=commands.config)

    for name, command, text in (
        ("recipes", commands.recipes, "the shipped recipes"),
        ("doctor", commands.doctor, "what this machine has, and what is amiss"),
        ("up", commands.up, "start the local Prefect server"),
        ("down", commands.down, "stop it"),
        ("ui", commands.ui, "how to open the Prefect and MLflow pages"),
    ):
        sub.add_parser(name, parents=[common], help=text).set_defaults(command=command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
