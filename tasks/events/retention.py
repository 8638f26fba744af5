"""Where the logs of a run lie on this machine, and which are removed.

<home>/runs/<run>/events.jsonl    the event log
<home>/runs/<run>/<attempt>.log   what the processes of an attempt print
<home>/runs/<run>/mlflow/         what tasks/tracking knows while MLflow does not have all events
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from trnflow.tasks.artifact import Meta
from trnflow.tasks.system.json_objects import parsed

FILE = "events.jsonl"
UNSENT = "mlflow/cursor.json"

KEPT_BYTES = 10**9
KEPT_RUNS = 200
"""Runs whose logs are kept however large they are; a sweep's trials count as one, previews as none."""
PRUNED = ".pruned"
PAUSE_SECONDS = 3600.0
"""The shortest time between two looks at all logs."""
PREVIEW = "-preview"
"""The end of the id of a run that only shows rows."""


def run_folder(home: Path, run: str) -> Path:
    """Return the folder of a run's logs, which need not exist."""
    return home / "runs" / run


def log_file(home: Path, run: str) -> Path:
    """Return the file of a run's events, which need not exist."""
    return run_folder(home, run) / FILE


def logged_runs(home: Path) -> list[str]:
    """Return the ids of the runs with logs on this machine, newest first."""
    folder = home / "runs"
    return sorted((path.name for path in folder.iterdir() if path.is_dir()), reverse=True) if folder.is_dir() else []


def written_runs(home: Path) -> set[str]:
    """Return the ids of the runs whose events are on this machine."""
    return {file.parent.name for file in (home / "runs").glob(f"*/{FILE}")}


def is_written(file: Path) -> bool:
    """Return whether a process writes a log now. A log without writer and `run_ended` is that of a killed run."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # locked; or a filesystem without locks, whose runs are never seen as killed
            return True
    return False


def unsent_file(home: Path, run: str) -> Path:
    """Return the file that exists while MLflow does not have all of a run's events."""
    return run_folder(home, run) / UNSENT


def unsent_runs(home: Path) -> list[str]:
    """Return the ids of the runs whose events MLflow does not have yet."""
    return [file.parents[1].name for file in (home / "runs").glob(f"*/{UNSENT}")]


def prune_logs(home: Path, keep: str = "") -> None:
    """Remove the logs of the oldest runs while all logs take more than KEPT_BYTES. The newest KEPT_RUNS, and runs that are
    still written or not yet in MLflow, stay. Looks once an hour at most.

    keep: a run that stays."""
    marker = home / "runs" / PRUNED
    with contextlib.suppress(OSError):
        if marker.exists() and time.time() - marker.stat().st_mtime < PAUSE_SECONDS:
            return
        marker.touch()
        runs = logged_runs(home)
        if len(runs) <= KEPT_RUNS:
            return
        files = {run: (file for file in run_folder(home, run).rglob("*") if file.is_file()) for run in runs}
        sizes = {run: sum(file.stat().st_size for file in some) for run, some in files.items()}
        total = sum(sizes.values())
        for run in reversed(list(_removable(home, runs)) if total > KEPT_BYTES else []):
            if total <= KEPT_BYTES:
                return
            if run != keep and not unsent_file(home, run).exists() and not is_written(log_file(home, run)):
                shutil.rmtree(run_folder(home, run), ignore_errors=True)
                total -= sizes[run]


def _removable(home: Path, runs: list[str]) -> Iterator[str]:
    """Yield the runs beyond the newest KEPT_RUNS that need not be kept, newest first."""
    units: set[str] = set()
    for run in runs:
        is_new = len(units) < KEPT_RUNS
        if not run.endswith(PREVIEW):
            units.add(str(first_line(log_file(home, run)).get("parent") or run))  # the run's sweep
        if not is_new:
            yield run


def first_line(file: Path) -> Meta:
    """Return the first event of a log, unchecked; {} if it can't be read."""
    with contextlib.suppress(OSError), file.open("rb") as handle:
        return parsed(handle.readline()) or {}
    return {}
