"""The follower: sends event logs to MLflow, in a process of its own.

It sends until its run has ended or died, then what earlier runs left.

    <home>/runs/<run>/mlflow/cursor.json   bytes sent, ids of the MLflow runs
    <home>/runs/<run>/mlflow/lock          locked by the process that sends
    <home>/runs/<run>/mlflow/warning       why the last try failed
    <home>/runs/<run>/mlflow/<stage>/      copies of plots

It is removed once all is sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta
from trnflow.tasks.events import follow, has_end, is_written, log_file, unsent_file, unsent_runs
from trnflow.tasks.events.retention import first_line
from trnflow.tasks.system.databases import is_database, missing_driver
from trnflow.tasks.system.garbage import no_collections
from trnflow.tasks.system.json_objects import read_object
from trnflow.tasks.system.redaction import Scrubbed, add_secrets_of, scrub, scrub_logs, without_secrets
from trnflow.tasks.system.whole_file import write_whole

if TYPE_CHECKING:
    from mlflow import MlflowClient

PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
SILENT = "does not answer"

# the server's address with credentials, which no event has
ADDRESS = "TRNFLOW_TRACKING_URI"

RECORDED_ADDRESS = "TRNFLOW_TRACKING_RECORDED"
"""The text that events contain in place of that address."""


@dataclass(frozen=True)
class Unsent:
    """The events of one run that MLflow does not have yet."""

    home: Path
    run: str

    @property
    def log(self) -> Path:
        return log_file(self.home, self.run)

    @property
    def cursor(self) -> Path:
        """Bytes sent, and the ids of the MLflow runs."""
        return unsent_file(self.home, self.run)

    @property
    def folder(self) -> Path:
        return self.cursor.parent

    @property
    def warning(self) -> Path:
        """Why the last try failed."""
        return self.folder / "warning"

    def exists(self) -> bool:
        return self.cursor.exists()

    def is_growing(self) -> bool:
        """Return whether the run may still write events."""
        return is_written(self.log) and not has_end(self.log)

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """Lock the cursor within the context; yield whether this process may send."""
        if not self.exists():
            yield False
            return
        with (self.folder / "lock").open("wb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield self.exists()

    def load(self) -> Meta:
        """Return the saved state; {"offset": 0} if it can't be read."""
        try:
            return read_object(self.cursor.read_bytes())
        except (OSError, ValueError):
            return {"offset": 0}

    def save(self, state: Meta) -> None:
        write_whole(self.cursor, json.dumps(state))

    def remove(self) -> None:
        self.cursor.unlink(missing_ok=True)  # first: without it nothing is unsent
        shutil.rmtree(self.folder, ignore_errors=True)


def follow_run(home: str, run: str) -> None:
    """Run the follower: send the events of `run` until that run ends, then all that is unsent in `home`."""
    os.nice(5)
    add_secrets_of(os.environ.get(ADDRESS, ""))
    scrub_logs()
    sys.stdout, sys.stderr = Scrubbed(sys.stdout), Scrubbed(sys.stderr)  # MLflow prints URLs
    unsent = Unsent(Path(home), run)
    pause = PAUSE_SECONDS
    while unsent.is_growing():
        with unsent.lock() as is_mine:
            is_sent = is_mine and not _unable_to_send(unsent)
        pause = PAUSE_SECONDS if is_sent else min(2 * pause, LONGEST_PAUSE_SECONDS)
        wake = time.monotonic() + pause
        while time.monotonic() < wake and unsent.is_growing():
            time.sleep(PAUSE_SECONDS)
    send_logs(Path(home), first=run)


def send_logs(home: Path, first: str = "") -> int:
    """Send what is left of all runs that have ended or died; return how many were sent. first: the run to begin with."""
    sent, silent = 0, set()
    for run in sorted(unsent_runs(home), key=lambda run: (run != first, run)):
        unsent = Unsent(home, run)
        if unsent.is_growing():
            continue
        with unsent.lock() as is_mine:
            address = _address(unsent) if is_mine else ""
            if not is_mine or address in silent:
                continue
            if why := _unable_to_send(unsent, is_over=True):
                # what is wrong with one run may not be with others, but if it does not answer they wait for a later call
                silent.update([address] if why == SILENT else [])
            else:
                unsent.remove()
                sent += 1
    return sent


def _unable_to_send(unsent: Unsent, *, is_over: bool = False) -> str:
    """Send the events so far; on a failure write a warning, and return why. is_over: without its end, the run was killed."""
    try:
        _send(unsent, is_over)
    except Exception as error:
        where, why = scrub(_address(unsent)), scrub(_reason(error))
        kept = f"the run is kept in {unsent.log} and uploaded by the next run"
        unsent.warning.write_text(f"MLflow at {where} {why}; {kept}\n", encoding="utf-8")
        return why
    unsent.warning.unlink(missing_ok=True)
    return ""


def _reason(error: Exception) -> str:
    if install := missing_driver(error):
        return f"needs a driver that is not installed: {install}"
    message = scrub(str(error)).strip().partition("\n")[0]
    if "Max retries exceeded" in message or "timed out" in message:
        return SILENT
    return f"did not take this run ({type(error).__name__}: {message[:200]})"


def _send(unsent: Unsent, is_over: bool) -> None:
    try:
        _send_from(unsent.load(), unsent, is_over)
    except Exception as error:
        if getattr(error, "error_code", "") != "RESOURCE_DOES_NOT_EXIST":
            raise
        # MLflow's database was lost, and the new one lacks what was sent to it
        _send_from({"offset": 0}, unsent, is_over)


def _send_from(state: Meta, unsent: Unsent, is_over: bool) -> None:
    events, offset = follow(unsent.log, state["offset"])
    if not events and (not is_over or state.get("ended")):
        return
    from trnflow.tasks.tracking.mlflow_runs import MlflowRuns

    runs = MlflowRuns(_client(_address(unsent), unsent.home / "tracking"), unsent.home, unsent.folder, state)
    while events:
        runs.apply(events)
        state["offset"] = offset
        unsent.save(state)
        events, offset = follow(unsent.log, offset)
    if is_over:
        runs.end_killed()
        unsent.save(state)


@functools.cache
def _client(address: str, folder: Path) -> MlflowClient:
    """Return the client of a tracking server."""
    with no_collections():
        from mlflow import MlflowClient

    if not is_database(address):
        return MlflowClient(address)
    folder.mkdir(exist_ok=True)
    with (folder / "tables.lock").open("wb") as handle:
        # MLflow makes a new database's tables at first use: two followers at once leave half of them
        fcntl.flock(handle, fcntl.LOCK_EX)
        client = MlflowClient(address)
        client.search_experiments(max_results=1)
        return client


def _address(unsent: Unsent) -> str:
    """Return the address that the run's first event names, with credentials if this process has them."""
    given, tracking = os.environ.get(ADDRESS, ""), first_line(unsent.log).get("tracking") or {}
    recorded = str(tracking.get("uri", ""))
    return given if given and recorded in (os.environ.get(RECORDED_ADDRESS), without_secrets(given)) else recorded
