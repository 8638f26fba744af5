"""Functions by which commands print their result (text or one JSON document on stdout), print errors (stderr) and exit."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from typing import NoReturn

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.system.log_lines import LogLines
from trnflow.tasks.system.redaction import hide, scrub


def emit(options: Namespace, document: Meta, *lines: object) -> None:
    """Print the result of a command on stdout: `document` as one line of JSON when --json is given, else each of
    `lines`.

    options: the command's parsed arguments. Passwords and tokens are hidden in the JSON, not in the lines."""
    if options.json:
        emit_json({"schema": 1, **document})
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def emit_json(document: Json) -> None:
    """Print a document as one line of JSON on stdout, with passwords and tokens hidden."""
    document = hide(document)
    sys.stdout.write(f"{json.dumps(document)}\n")


def say_error(error: TrnflowError) -> None:
    """Print an error and its fix (what the user can do) on stderr, with passwords and tokens hidden; as a JSON line if
    TRNFLOW_LOG=json."""
    if isinstance(sys.stderr, LogLines):
        told = error.to_json()
        sys.stderr.record(
            error.message, level="error", stage=error.stage or None, type=told["type"], fix=error.fix or None
        )
        return
    where = f" in {error.stage}" if error.stage else ""
    sys.stderr.write(f"error{where}: {scrub(error.message)}\n")
    if error.fix:
        sys.stderr.write(f"  fix: {scrub(error.fix)}\n")


def exit_at_once(code: int) -> NoReturn:
    """End the process without waiting for its threads; stdout and stderr are flushed first.

    Used where waiting would take long: Prefect's threads try for minutes to reach a server that is gone, and the threads of
    an interrupted stage may still compute.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
