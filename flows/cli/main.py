"""The command line: `trnflow COMMAND RECIPE [section.setting=value ...]`.

Each module of a group has `add_commands(sub, *parents)`, which adds its commands to argparse's subparsers; a command
returns its exit code: 0 success, 1 a stage failed, 2 wrong usage or configuration, 130 interrupted. With --json one
JSON document goes to stdout, all other text to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

from trnflow.flows.cli.headings import help_page
from trnflow.flows.cli.output import complete, exit_at_once, print_error, say_error
from trnflow.flows.services.prefect_address import no_logging_of_this_folder
from trnflow.tasks.errors import ConfigError, Interrupted, Terminated, TrnflowError, unexpected
from trnflow.tasks.launch.memory_watch import watch_memory
from trnflow.tasks.system.garbage import no_collections
from trnflow.tasks.system.log_lines import LogLines, log_as_asked
from trnflow.tasks.system.redaction import hide_override, scrub, scrub_logs, scrubbed
from trnflow.tasks.system.threads import abandoned

GROUPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "new_commands": (("new",), ("common",)),
    "run_commands": (("run", "prepare"), ("online",)),
    "job_commands": (("job", "jobs"), ("common", "store")),
    "plan_commands": (("plan", "explain", "show", "get"), ("recipe",)),
    "preview": (("preview",), ("recipe",)),
    "rehearse_command": (("rehearse",), ("online",)),
    "accept": (("accept",), ("recipe",)),
    "model.predict": (("predict",), ("store",)),
    "live.runs_command": (("runs",), ("store",)),
    "history_commands": (("lineage", "diff", "report"), ("store",)),
    "live.status_command": (("status",), ("store",)),
    "live.logs_command": (("logs",), ("store",)),
    "store_commands": (("verify", "gc", "pin", "unpin"), ("store",)),
    "model.champion_commands": (("freeze", "promote", "rollback", "champions"), ("recipe", "online", "store")),
    "model.history_command": (("history",), ("store",)),
    "health_command": (("health",), ("store",)),
    "model.publish_commands": (("publish",), ("store",)),
    "model.retrain_command": (("retrain",), ("online",)),
    "model.watch_command": (("watch",), ("online",)),
    "model.sweep_command": (("sweep",), ("online",)),
    "recipe_commands": (("config", "recipes", "settings", "schema"), ("common", "recipe")),
    "service_commands": (("doctor", "up", "down", "deploy", "worker", "ui"), ("common",)),
    "completion": (("completion",), ("common",)),
}
"""{module in flows/cli: (its commands, the parents of `add_commands`)}; headings.py has the order of `trnflow --help`. A command
imports its own module alone: all of them take a third of the time of `trnflow plan`."""

WATCHED = ("new", "plan", "predict")
"""Commands that read data, models' files and tokenizers from elsewhere in their own process."""

WITH_SETTINGS = (
    "new", "preview", "plan", "rehearse", "run", "prepare", "sweep", "predict", "get", "publish", "freeze", "promote",
    "rollback", "retrain", "watch", "explain", "show", "accept", "config",
)  # fmt: skip
"""Commands that use overrides. Others refuse them: `gc --yes keep_days=30` would remove what shall be kept."""

OVERRIDE = re.compile(r"[A-Za-z_][A-Za-z_0-9]*(\.[A-Za-z_0-9-]+)*=")


def main(arguments: list[str] | None = None) -> int:
    """Run a command, print its error, and return its exit code. Raises SystemExit for wrong usage and --help."""
    is_own_process = arguments is None  # else another program calls
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with log_as_asked():
            overrides, rest, texts = _separated(arguments)
            with _quick_imports():
                options = _parsed(rest, texts)
            if overrides and rest[0] not in WITH_SETTINGS:
                fix = f"leave it out: `trnflow {rest[0]} --help` shows what can be given"
                raise ConfigError(f"{rest[0]} takes no settings, such as {hide_override(overrides[0])}", fix)
            if is_own_process:
                no_logging_of_this_folder()
                # of a locale without UTF-8: a text may have other characters
                if isinstance(sys.stdout, io.TextIOWrapper):
                    sys.stdout.reconfigure(errors="backslashreplace")
                # modules stay: later collections need not look at them. Another program's garbage would stay, too
                gc.freeze()
                if rest[:1] and rest[0] in WATCHED:
                    watch_memory(rest[0], say_error)
            options.overrides = [*([f"on={options.on}"] if getattr(options, "on", None) else []), *overrides]
            scrub_logs()
            signal.signal(signal.SIGTERM, _interrupt)
            code = _call(options)
            if abandoned():
                exit_at_once(code)
            return code
    # what `_call` has not dealt with: wrong usage, and Ctrl-C while modules are imported
    except (ConfigError, KeyboardInterrupt) as error:
        found = error if isinstance(error, ConfigError) else Interrupted("interrupted", "run the same command again")
        return fail(found, argparse.Namespace(json="--json" in arguments, debug=False))


@contextlib.contextmanager
def _quick_imports() -> Iterator[None]:
    """Import a command's modules in less time: look neither for garbage nor for pydantic's plugins."""
    without_plugins = "PYDANTIC_DISABLE_PLUGINS" not in os.environ
    if without_plugins:  # a plugin may watch models, and nobody asked for that of a command's own settings
        os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    with no_collections():
        try:
            yield
        finally:
            if without_plugins:
                del os.environ["PYDANTIC_DISABLE_PLUGINS"]


def _call(options: argparse.Namespace) -> int:
    """Call the command that the options name; print its error."""
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
    """Print an error on stderr, and with --json a document on stdout; return its exit code."""
    error = scrubbed(complete(error, options))
    if options.json:
        print(json.dumps({"schema": 1, "error": error.placed()}))
    return print_error(error, options)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    # a platform may signal all processes of a run, some of them twice; SIG_IGN would be inherited by child processes
    signal.signal(signal.SIGTERM, lambda *_: None)
    raise Terminated


def _separated(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Split arguments into (overrides, others, what follows `--`): argparse can't take overrides at any position."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given = arguments[:end]
    overrides = [text for text in given if OVERRIDE.match(text)]
    return overrides, [text for text in given if not OVERRIDE.match(text)], arguments[end + 1 :]


def _parsed(arguments: list[str], texts: list[str]) -> argparse.Namespace:
    """Parse arguments. texts: what follows `--`, since argparse fills a list from one run of arguments alone."""
    top = parser(arguments[0] if arguments else None)
    options, rest = top.parse_known_args(arguments)
    more = [*rest, *texts]
    if more and (not hasattr(options, "texts") or any(text.startswith("-") for text in rest)):
        top.error(f"unrecognized arguments: {' '.join(more)}{_hint(rest)}")
    if more:
        options.texts += more
    return options


def _hint(unknown: list[str]) -> str:
    """Return a sentence about the first unknown option that another tool has, or ""."""
    from trnflow.flows.recipes.other_names import suggested_option
    from trnflow.flows.recipes.recipe import Recipe

    hints = (suggested_option(word, Recipe) for word in unknown if word.startswith("--"))
    return next((f" ({hint})" for hint in hints if hint), "")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are JSON lines where all other errors are."""

    def error(self, message: str) -> NoReturn:
        message = scrub(message)  # an argument may be a URL with a password
        if isinstance(sys.stderr, LogLines):
            say_error(ConfigError(message, f"`{self.prog} --help` shows what can be given"))
            self.exit(ConfigError.exit_code)
        super().error(message)


class _TopParser(_Parser):
    """The parser of `trnflow` alone, whose help stands under headings."""

    def format_help(self) -> str:
        sub = next(action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return help_page({choice.dest: choice.help or "" for choice in sub._get_subactions()})


class _PrintVersion(argparse.Action):
    """Print the version of the installed package, which takes 20 ms to find, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any) -> NoReturn:
        from importlib.metadata import version

        print(f"trnflow {version('trnflow')}")
        parser.exit()


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the argument parser, with the named command alone; with all for None, an unknown name and `completion`."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    common.add_argument("--debug", action="store_true", help="print tracebacks")
    recipe = argparse.ArgumentParser(add_help=False, parents=[common])
    recipe.add_argument("recipe", help="a name (see `trnflow recipes`) or a YAML file")
    recipe.add_argument(
        "--on",
        metavar="HARDWARE",
        help="run on this hardware: auto (this machine's GPUs, else its processor), gpu, cpu, or a name such as g5.xlarge",
    )
    online = argparse.ArgumentParser(add_help=False, parents=[recipe])
    online.add_argument("--offline", action="store_true", help="ask no hub: use the last known revisions")
    store = argparse.ArgumentParser(add_help=False, parents=[common])
    store.add_argument("--store", metavar="ROOT", help="a folder or URL; default: TRNFLOW_STORE, else <home>/store")
    parents = {"common": common, "recipe": recipe, "online": online, "store": store}

    top = _TopParser(prog="trnflow")
    top.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    sub = top.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    needed = [name for name, (commands, _) in GROUPS.items() if command in commands and command != "completion"]
    for name in needed or GROUPS:
        import_module(f"trnflow.flows.cli.{name}").add_commands(sub, *(parents[parent] for parent in GROUPS[name][1]))
    return top
