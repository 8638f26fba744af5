"""The uploader: sends spools to MLflow.

Each run starts one. It uploads the run's spool until the run has ended or died, then what earlier runs left.
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
from trnflow.tasks.system.redaction import Scrubbed, add_secrets_of, scrub, scrub_logs, without_secrets
from trnflow.tasks.tracking.spool import SpoolFiles

if TYPE_CHECKING:
    from mlflow import MlflowClient

PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0

# the server's address with credentials, which are never written to a spool
ADDRESS = "TRNFLOW_TRACKING_URI"

RECORDED_ADDRESS = "TRNFLOW_TRACKING_RECORDED"
"""The text that spools contain in place of that address."""


def follow_run(home: str, run: str) -> None:
    """Run the uploader: send the spool of `run` until that run ends, then all others left in `home`."""
    os.nice(5)
    add_secrets_of(os.environ.get(ADDRESS, ""))
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
    """Upload and remove the spools of all runs that have ended or died; return how many. first: the run to begin
    with."""
    uploaded, failed = 0, set()
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
                uploaded += 1
            else:
                # other spools for the same server are left for a later call
                failed.add(address)
    return uploaded


def _upload_to_end(files: SpoolFiles) -> bool:
    """Upload all events of a run that is over, end it in MLflow, and remove the spool."""
    if not _try_upload(files):
        return False
    if not files.load_state().get("ended"):
        files.append_killed()
        if not _try_upload(files):
            return False
    files.remove()
    return True


def _try_upload(files: SpoolFiles) -> bool:
    """Upload the events written until now; on a failure write a warning and return False."""
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
    """Return the client of a tracking server."""
    from mlflow import MlflowClient

    if not is_database(address):
        return MlflowClient(address)
    with (folder / "tables.lock").open("wb") as handle:
        # MLflow makes a new database's tables at first use: two uploaders at once leave half of them
        fcntl.flock(handle, fcntl.LOCK_EX)
        client = MlflowClient(address)
        client.search_experiments(max_results=1)
        return client


def _address(files: SpoolFiles) -> str:
    """Return the address that the spool names, with credentials if this process has them."""
    events, _ = files.read(0)
    spooled = next((str(event["uri"]) for event in events if event["event"] == "run_started"), "")
    given = os.environ.get(ADDRESS, "")
    return given if given and spooled in (os.environ.get(RECORDED_ADDRESS), without_secrets(given)) else spooled
