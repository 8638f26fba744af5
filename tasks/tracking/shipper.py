"""The process that uploads spools to MLflow: importing MLflow takes 5 s and its server may be down, and neither may cost a run.

It follows the spool of the run that started it, ends when that run has ended or died (then the run is KILLED), and last
takes up what earlier runs could not upload. A failure is noted in `<run>.warning` and tried again, at the latest by the
next run's shipper.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.tracking.redact import redact
from tasks.tracking.spool import Paths

if TYPE_CHECKING:
    from mlflow import MlflowClient

POLL = 0.5
LONGEST_PAUSE = 30.0

URI = "TRNFLOW_TRACKING_URI"
"""The variable that brings the tracking server's address with its credentials, which no spool holds."""


def follow(home: str, run: str) -> None:
    """Upload the spool of a living run until it ends, then what earlier runs left. The entry of the shipper's process."""
    os.nice(5)
    paths = Paths(Path(home), run)
    with paths.uploading() as mine:
        if mine:
            _follow(paths)
    ship_pending(Path(home))


def ship_pending(home: Path) -> int:
    """Upload what runs that are over have left; returns how many spools are now done. A server that fails once is not asked
    again for the next."""
    done, failed = 0, set()
    for events in sorted((home / "tracking").glob("*.jsonl")):
        paths = Paths(home, events.name.removesuffix(".jsonl"))
        if paths.written_now():
            continue
        with paths.uploading() as mine:
            address = _address(paths) if mine else ""
            if not mine or address in failed:
                continue
            if _ship_rest(paths):
                done += 1
            else:
                failed.add(address)
    return done


def _follow(paths: Paths) -> None:
    pause = POLL
    while True:
        living = paths.written_now()  # asked before reading: what a dead writer wrote is read in full
        shipped = _try(paths)
        if not living:
            if shipped:
                _finish(paths)
            return
        pause = POLL if shipped else min(2 * pause, LONGEST_PAUSE)
        wake = time.monotonic() + pause
        while time.monotonic() < wake and paths.written_now():
            time.sleep(POLL)


def _ship_rest(paths: Paths) -> bool:
    return _try(paths) and _finish(paths)


def _finish(paths: Paths) -> bool:
    """All that a dead writer wrote is uploaded: end its run if it did not, and retire the spool."""
    if not paths.load_state().get("ended"):
        paths.abandoned()
        if not _try(paths):
            return False
    paths.retire()
    return True


def _try(paths: Paths) -> bool:
    """Upload all there is now. On a failure, of whatever kind, note it for the user and go on living."""
    try:
        _upload(paths)
    except Exception as error:
        where, why = redact(_address(paths)), redact(_reason(error))
        kept = f"the run is kept in {paths.events} and uploaded by the next run"
        paths.warning.write_text(f"MLflow at {where} {why}; {kept}\n", encoding="utf-8")
        return False
    paths.warning.unlink(missing_ok=True)
    return True


def _reason(error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    if "Max retries exceeded" in said or "timed out" in said:
        return "does not answer"
    return f"did not take this run ({type(error).__name__}: {said[:200]})"


def _upload(paths: Paths) -> None:
    from tasks.tracking.upload import Upload

    state = paths.load_state()
    events, offset = paths.read(state["offset"])
    if not events:
        return
    upload = Upload(_client(_address(paths)), paths, state)
    while events:
        upload.apply(events)
        state["offset"] = offset
        paths.save_state(state)
        events, offset = paths.read(offset)


@functools.cache
def _client(address: str) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(address)


def _address(paths: Paths) -> str:
    """Of the tracking server: the spool's, with this process's credentials for it."""
    events, _ = paths.read(0)
    spooled = next((str(event["uri"]) for event in events if event["event"] == "run_started"), "")
    given = os.environ.get(URI, "")
    return given if given and redact(given) == spooled else spooled
