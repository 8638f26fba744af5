"""The process that uploads spools to MLflow, so that a run waits neither for MLflow's import (5 s) nor for its server.
A spool is the file to which a run writes its events for MLflow.

Each run starts one uploader. It uploads the run's spool until the run has ended, or has died (MLflow then shows the run as
KILLED). Then it uploads the spools that earlier runs left. When an upload fails, the reason is written to `<run>.warning`,
and the upload is tried again, at the latest by the uploader of the next run.
"""

from __future__ import annotations

import fcntl
import functools
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.system.databases import is_database, missing_driver
from trnflow.tasks.system.redaction import Scrubbed, learn, redact, scrub, scrub_logs
from trnflow.tasks.tracking.spool import SpoolFiles

if TYPE_CHECKING:
    from mlflow import MlflowClient

PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0

ADDRESS = "TRNFLOW_TRACKING_URI"
"""The environment variable with the tracking server's address and credentials, which are never written to a spool."""

RECORDED_ADDRESS = "TRNFLOW_TRACKING_RECORDED"
"""The environment variable with the text that spools contain in place of that address."""


def follow_run(home: str, run: str) -> None:
    """Run the uploader: send the spool of `run` (the file in which its events wait) to MLflow until that run ends, then
    all spools that other runs left. This is the entry point of the uploading process. home: the folder of local state
    (TRNFLOW_HOME), which has the spools."""
    os.nice(5)
    learn(os.environ.get(ADDRESS, ""))
    scrub_logs()
    sys.stdout, sys.stderr = Scrubbed(sys.stdout), Scrubbed(sys.stderr)  # MLflow prints URLs
    files = SpoolFiles(Path(home), run)
    pause = PAUSE_SECONDS
    while files.has_writer():
        with files.upload_lock() as is_mine:
            is_uploaded = is_mine and _try_upload(files)
        pause = PAUSE_SECONDS if is_uploaded else min(2 * pause, LONGEST_PAUSE_SECONDS)
        wake = time.monotonic() + pause
        while time.monotonic() < wake and files.has_writer():
            time.sleep(PAUSE_SECONDS)
    upload_left(Path(home), first=run)


def upload_left(home: Path, first: str = "") -> int:
    """Upload to MLflow the spools (files of events) of all runs that have ended or died, and remove each spool that
    was uploaded completely. Return how many spools were uploaded and removed.

    home: the folder of local state; first: the id of the run to begin with. After a failed upload, other spools for
    the same server are left for a later call.
    """
    done, failed = 0, set()
    runs = sorted(events.name.removesuffix(".jsonl") for events in (home / "tracking").glob("*.jsonl"))
    for run in sorted(runs, key=lambda run: run != first):
        files = SpoolFiles(home, run)
        if files.has_writer():
            continue
        with files.upload_lock() as is_mine:
            address = _address(files) if is_mine else ""
            if not is_mine or address in failed:
                continue
            if _upload_to_end(files):
                done += 1
            else:
                failed.add(address)
    return done


def _upload_to_end(files: SpoolFiles) -> bool:
    """Upload all events of a run that is over, end the run in MLflow if it did not end itself, and remove the spool."""
    if not _try_upload(files):
        return False
    if not files.load_state().get("ended"):
        files.append_killed()
        if not _try_upload(files):
            return False
    files.remove()
    return True


def _try_upload(files: SpoolFiles) -> bool:
    """Upload the events written until now. On a failure, write a warning for the user to disk and return False."""
    try:
        _upload(files)
    except Exception as error:
        where, why = scrub(_address(files)), scrub(_reason(error))
        kept = f"the run is kept in {files.events} and uploaded by the next run"
        files.warning.write_text(f"MLflow at {where} {why}; {kept}\n", encoding="utf-8")
        return False
    files.warning.unlink(missing_ok=True)
    return True


def _reason(error: Exception) -> str:
    if install := missing_driver(error):
        return f"needs a driver that is not installed: {install}"
    message = scrub(str(error)).strip().partition("\n")[0]
    if "Max retries exceeded" in message or "timed out" in message:
        return "does not answer"
    return f"did not take this run ({type(error).__name__}: {message[:200]})"


def _upload(files: SpoolFiles) -> None:
    from trnflow.tasks.tracking.mlflow_runs import MlflowRuns

    state = files.load_state()
    events, offset = files.read(state["offset"])
    if not events:
        return
    runs = MlflowRuns(_client(_address(files), files.folder), files, state)
    while events:
        runs.apply(events)
        state["offset"] = offset
        files.save_state(state)
        events, offset = files.read(offset)


@functools.cache
def _client(address: str, folder: Path) -> MlflowClient:
    """Return the client of a tracking server. MLflow makes the tables of a new database at first use; a lock in
    `folder` keeps two uploaders from doing so at once, which leaves half of the tables."""
    from mlflow import MlflowClient

    if not is_database(address):
        return MlflowClient(address)
    with (folder / "tables.lock").open("wb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        client = MlflowClient(address)
        client.search_experiments(max_results=1)
        return client


def _address(files: SpoolFiles) -> str:
    """Return the address of the tracking server that the spool names; with credentials if this process's own address is
    for the same server."""
    events, _ = files.read(0)
    spooled = next((str(event["uri"]) for event in events if event["event"] == "run_started"), "")
    given = os.environ.get(ADDRESS, "")
    return given if given and spooled in (os.environ.get(RECORDED_ADDRESS), redact(given)) else spooled
