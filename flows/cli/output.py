"""Print a command's result and errors, and exit."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from trnflow.tasks.errors import BlobLost, TrnflowError
from trnflow.tasks.system.log_lines import LogLines
from trnflow.tasks.system.redaction import hide_override, hide_secrets, scrub
from trnflow.tasks.system.terminal import one_line, printable

if TYPE_CHECKING:
    from trnflow.tasks.artifact import Json

# A suggested command without a recipe means that of the failed command.
_OWN_RECIPE = re.compile(r"`trnflow (run|prepare|plan)(?P<rest>| --[^`]*)`")


def emit(options: Namespace, document: Mapping[str, Json], *lines: object) -> None:
    """Print `document` as a line of JSON, secrets hidden, with --json; else `lines`, each as one line."""
    if options.json:
        emit_json({"schema": 1, **document})
    else:
        tell(*lines)


def tell(*lines: object) -> None:
    """Print each of `lines` as one line on stdout, its control characters escaped and secrets hidden."""
    sys.stdout.write("".join(f"{one_line(scrub(str(line)))}\n" for line in lines))


def say(*lines: object) -> None:
    """Print each of `lines` as one line on stderr, its control characters escaped and secrets hidden."""
    sys.stderr.write("".join(f"{one_line(scrub(str(line)))}\n" for line in lines))


def emit_json(document: Json) -> None:
    """Print a document as one line of JSON, with secrets hidden."""
    document = hide_secrets(document)
    sys.stdout.write(f"{json.dumps(document)}\n")


def complete(error: TrnflowError, options: Namespace) -> TrnflowError:
    """Insert the failed command's recipe and overrides, secrets hidden, into the commands of the error's fix."""
    from trnflow.tasks.store.model_names import WITH_WHICH

    recipe = getattr(options, "recipe", None)
    if recipe is not None:
        # `run` takes a recipe, not a model of it
        if isinstance(error, BlobLost) and (model := WITH_WHICH.fullmatch(recipe)):
            recipe = model["recipe"]
            earlier = f"`trnflow rollback {shlex.quote(recipe)}` takes the champion before it"
            error.fix += f", with the settings of that model; {earlier}"
        given = shlex.join([recipe, *map(hide_override, options.overrides)])
        error.fix = _OWN_RECIPE.sub(lambda match: f"`trnflow {match[1]} {given}{match['rest']}`", error.fix)
    return error


def say_error(error: TrnflowError) -> None:
    """Print an error and its fix on stderr, with secrets hidden; as a JSON line if TRNFLOW_LOG=json."""
    if isinstance(sys.stderr, LogLines):
        document = error.to_json()
        sys.stderr.record(
            error.message, level="error", stage=error.stage or None, type=document["type"], fix=error.fix or None
        )
        return
    where = f" in {error.stage}" if error.stage else ""
    sys.stderr.write(f"error{where}: {_indented(error.message)}\n")
    if error.fix:
        sys.stderr.write(f"  fix: {_indented(error.fix)}\n")


def _indented(text: str) -> str:
    """Return a text, secrets hidden, whose further lines are indented: none looks like a line of ours."""
    return re.sub(r"\n(?=\S)", "\n    ", printable(scrub(text)))


def print_error(error: TrnflowError, options: Namespace) -> int:
    """Print an error, its fix completed, and with --debug its traceback; return its exit code."""
    say_error(complete(error, options))
    if options.debug:
        sys.stderr.write(printable(scrub(error.details)))
    return error.exit_code


def exit_at_once(code: int) -> NoReturn:
    """End the process without waiting for its threads."""
    from trnflow.tasks.launch.warm_parents import close_all

    close_all()
    sys.stdout.flush()
    sys.stderr.flush()
    # Prefect's threads try for minutes to reach a server that is gone
    os._exit(code)
