"""`trnflow logs RUN`: print what the stages' processes wrote to their logs."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trnflow.flows.cli.arguments import OR_RECIPE, RUN_NAMES, add_command, add_run
from trnflow.flows.cli.live.status_command import leases_of_stages
from trnflow.flows.cli.output import emit_json
from trnflow.flows.cli.past_store import past_run, past_store
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.events import run_folder
from trnflow.tasks.events.following import LOOK_SECONDS, Follower
from trnflow.tasks.events.log_copy import COPY_SECONDS
from trnflow.tasks.system.redaction import scrub
from trnflow.tasks.system.terminal import one_line, printable


class Log(NamedTuple):
    """What the processes of one attempt printed."""

    file: Path
    stage: str


def add_commands(sub: Any, store: ArgumentParser) -> None:
    found = add_command(sub, "logs", logs, store, "print the logs of a run's stages")
    add_run(found, f"{RUN_NAMES}; {OR_RECIPE}")
    found.add_argument("--follow", action="store_true", help="go on until the run ends")


def logs(options: Namespace) -> int:
    """Print the logs of a run, oldest first; with --follow until the run ends. Of a run of another machine they are the
    store's copy. Raises ConfigError, StoreError."""
    store = past_store(options.store, options.run)
    running = {holder.run for holder, _, _ in leases_of_stages(store, silent=True)}
    run = past_run(store, options.run, {*running, *_logged(store.home), *store.backend.folders("logs")})
    follower = Follower(store, run)
    if options.json:
        follower.look()
        logged = {log.file.stem: scrub(_text(log.file, 0, whole=True)) for log in logs_of(store.home, run)}
        copied = {attempt: text.decode("utf-8", "replace") for attempt, text in follower.printed.items()}
        texts = [
            {"stage": stage_of(run, attempt), "text": _as_utf8(text)} for attempt, text in {**copied, **logged}.items()
        ]
        emit_json({"schema": 1, "run": run, "logs": texts})
        return 0
    printed: dict[Path, int] = {}
    shown: set[str] = set()
    while True:
        follower.look()
        ended = not options.follow or follower.is_over
        here = logs_of(store.home, run)
        for log in here:
            _print_new(log, printed, whole=ended)
        _print_copied(
            {name: text for name, text in follower.printed.items() if name not in map(_attempt, here)}, run, shown
        )
        if ended:
            break
        time.sleep(LOOK_SECONDS if follower.is_here else COPY_SECONDS)
    if not printed and not shown and not options.follow:
        raise ConfigError(
            f"there is no log of the run {run} in {run_folder(store.home, run)}, nor in the store",
            "a run whose stages all hit has none; 1 GB of logs is kept on the machine that ran the stages, and of each its "
            "beginning and end in the store",
        )
    return 0


def logs_of(home: Path, run: str) -> list[Log]:
    """Return a run's logs on this machine, the least recently written first."""
    found = [(file.stat().st_mtime, file) for file in run_folder(home, run).glob(f"{run}-*.log")]
    return [Log(file, stage_of(run, file.stem)) for _, file in sorted(found)]


def stage_of(run: str, attempt: str) -> str:
    """Return the stage of an attempt of a run."""
    return attempt.removeprefix(f"{run}-").partition("-")[0]


def _attempt(log: Log) -> str:
    return log.file.stem


def _logged(home: Path) -> set[str]:
    """Return the ids of the runs with logs here, such as previews, which are not on record."""
    return {file.parent.name for file in (home / "runs").glob("*/*.log")}


def _print_new(log: Log, printed: dict[Path, int], *, whole: bool) -> None:
    """Print what was added to a log since the last call. printed: {log: bytes}; whole: see `_text`."""
    text = _text(log.file, printed.get(log.file, 0), whole=whole)
    if log.file not in printed:
        sys.stdout.write(f"== {log.stage} =={'' if text or not whole else ' (nothing printed)'}\n")
    printed[log.file] = printed.get(log.file, 0) + len(text.encode("utf-8", "surrogateescape"))
    sys.stdout.write(printable(_as_utf8(scrub(text)).replace("\r\n", "\n")))
    if text and not text.endswith("\n"):
        sys.stdout.write("\n")
    sys.stdout.flush()


def _print_copied(added: Mapping[str, bytes], run: str, shown: set[str]) -> None:
    """Print what was added to the copies of logs. shown: the attempts that have their line."""
    for attempt, text in added.items():
        if attempt not in shown:
            sys.stdout.write(f"== {one_line(stage_of(run, attempt))} ==\n")
        shown.add(attempt)
        lines = printable(text.decode("utf-8", "replace").replace("\r\n", "\n"))
        sys.stdout.write(lines if lines.endswith("\n") else f"{lines}\n")
    sys.stdout.flush()


def _text(file: Path, begin: int, *, whole: bool) -> str:
    """Return a file's text from a byte on. whole: also a last line that has no end yet."""
    data = file.read_bytes()[begin:]
    return data[: None if whole else data.rfind(b"\n") + 1].decode("utf-8", "surrogateescape")


def _as_utf8(text: str) -> str:
    """Replace bytes that are no UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
