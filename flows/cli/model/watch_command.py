"""`trnflow watch RECIPE`: look at a recipe's data every few minutes, and announce or retrain when it changed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.flows.cli.arguments import add_command, number
from trnflow.flows.cli.output import complete, emit_json, say_error, tell
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.context import open_context
from trnflow.flows.runner.work_folders import open_home
from trnflow.tasks.errors import Terminated, TrnflowError
from trnflow.tasks.system.redaction import hide_secrets, scrubbed
from trnflow.tasks.system.terminal import printable

if TYPE_CHECKING:
    from trnflow.flows.retraining.watch import Look

EVERY_SECONDS = 300.0


def add_commands(sub: Any, online: ArgumentParser) -> None:
    watching = add_command(sub, "watch", watch, online, "announce that a recipe's data changed, until Ctrl-C")
    watching.add_argument(
        "--every",
        type=number(float, 1, 86400),
        default=EVERY_SECONDS,
        metavar="S",
        help="seconds between two looks (300)",
    )
    watching.add_argument("--once", action="store_true", help="look once; run it again to look again")
    watching.add_argument("--retrain", action="store_true", help="retrain here, in place of an event for Prefect")


def watch(options: Namespace) -> int:
    """Look at the data every `--every` seconds until Ctrl-C, or once with --once.

    A change counts when the data was the same for half of `--every`. Then send the event `trnflow.data.changed` to
    Prefect's server, if there is one, or with --retrain retrain in a child process. An error at the first look, or with
    --once, ends the command; later ones are printed.
    """
    settings.load(options.recipe, options.overrides)
    printed, is_first = "", True
    while True:
        begun = time.monotonic()
        try:
            printed = _look(options, printed)
        except TrnflowError as error:
            if options.once or is_first:
                raise
            printed = _print_error(options, scrubbed(complete(error, options)), printed)
        if options.once:
            return 0
        is_first = False
        time.sleep(max(0.0, options.every - (time.monotonic() - begun)))


def _look(options: Namespace, printed: str) -> str:
    """Look once and act on a change. printed: the finding that was printed last. Returns the present one."""
    from trnflow.flows.retraining.watch import look, note_announced

    context = open_context(options.recipe, options.overrides)  # it may have been edited since the last look
    store = context.store
    found = look(context.recipe, store, every=options.every, offline=options.offline)
    is_change = found.outcome == "changed"
    done = _act(options, found) if is_change else ""
    if is_change:
        note_announced(found, store)
    finding = f"{found.outcome} {found.data}"
    if is_change or finding != printed or options.once:
        if options.json:
            emit_json({**found.to_json(), "done": done or None})
        else:
            tell(f"{found.recipe} {found.outcome}: {found.why}{f'; {done}' if done else ''}")
        sys.stdout.flush()
    if is_change and options.retrain:
        _retrain(options)
    return finding


def _act(options: Namespace, found: Look) -> str:
    """Send a change's event to Prefect's server if there is one, and return what was done."""
    from trnflow.flows.cli.prefect_run import quiet
    from trnflow.flows.services.prefect_address import configured_url
    from trnflow.flows.services.prefect_server import running_server, use_server

    if options.retrain:
        return "retraining it"
    home = open_home()
    if not (configured_url() or running_server(home)):
        return "no event was sent, because no Prefect server runs (`trnflow up` starts one; --retrain needs none)"
    url = use_server(home)  # before Prefect is imported, below
    quiet()
    from trnflow.flows.services.deploy import enter_project
    from trnflow.flows.services.events import data_changed, send_events

    enter_project(Path.cwd())
    send_events([data_changed(found.to_json(), options.recipe, options.overrides)])
    return f"sent an event to Prefect at {hide_secrets(url.removesuffix('/api'))}"


def _retrain(options: Namespace) -> None:
    """Retrain in a process with a session of its own; Ctrl-C and TERM are passed on: training saves its state."""
    more = ["--offline"] if options.offline else []
    command = [sys.executable, "-P", "-m", "trnflow", "retrain", options.recipe, *more, *options.overrides]
    is_stopped = False
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        while process.returncode is None:
            try:
                for line in process.stdout:
                    sys.stderr.write(printable(line))
                process.wait()
            except KeyboardInterrupt as error:
                is_stopped = True
                process.send_signal(signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    if is_stopped:
        raise KeyboardInterrupt


def _print_error(options: Namespace, error: TrnflowError, printed: str) -> str:
    """Print an error unless it was printed last. Returns its text."""
    if error.message != printed:
        if options.json:
            emit_json({"schema": 1, "error": error.placed()})
        say_error(error)
        sys.stdout.flush()
    return error.message
