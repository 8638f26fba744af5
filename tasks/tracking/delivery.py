"""Start the follower of a run's event log when there is something to send, and wait a while when the run ends."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.events.event_types import RunEnded, stages_of
from trnflow.tasks.launch.python import python
from trnflow.tasks.system.child_environ import without_logins
from trnflow.tasks.tracking.follower import ADDRESS, RECORDED_ADDRESS, Unsent

WAIT_SECONDS = 20.0
CANCELLED_WAIT_SECONDS = 2.0


class MlflowDelivery(Reader):
    """A reader of a run's events that starts their follower: when the first planned stage begins, or when the run fails. A
    run whose stages are all hits starts none.

    home: the folder of local state; address: of MLflow, with secrets; wait_seconds: the longest wait for the follower when
    the run ends.
    """

    def __init__(self, home: Path, address: str, *, wait_seconds: float = WAIT_SECONDS) -> None:
        self._home, self._address, self._wait_seconds = home, address, wait_seconds
        self._unsent: Unsent | None = None
        self._recorded = ""
        self._planned: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._warned = False

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "run_begun":
            self.note, self._process, self._planned, self._warned = "", None, set(), False
            tracking = event.get("tracking")
            self._unsent = Unsent(self._home, event["run"]) if tracking else None
            self._recorded = str(tracking["uri"]) if tracking else ""
        elif event["event"] == "planned":
            self._planned = {stage["stage"] for stage in stages_of(event)}
        if self._unsent is not None:
            if self._process is None and self._is_worth_sending(event):
                self._process = self._start(self._unsent)
            if self._process is not None and not self._warned and self._unsent.warning.exists():
                self._warned = True
                self.warning = self._unsent.warning.read_text(encoding="utf-8").strip()
            if event["event"] == "run_ended" and self._process is not None:
                self._await(self._unsent, self._process, event)

    def _is_worth_sending(self, event: Event) -> bool:
        if event["event"] == "stage_begun":
            return event["stage"] in self._planned
        if event["event"] == "run_begun":
            return event["kind"] == "sweep"  # its trials are nested in it
        return event["event"] == "champion" or (event["event"] == "run_ended" and event["error"] is not None)

    def _start(self, unsent: Unsent) -> subprocess.Popen[bytes]:
        unsent.save({"offset": 0})
        environ = {
            **without_logins(os.environ),
            ADDRESS: self._address,
            RECORDED_ADDRESS: self._recorded,
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
            "DO_NOT_TRACK": "1",
        }
        folder = self._home / "tracking"
        folder.mkdir(exist_ok=True)
        with (folder / "follower.log").open("wb") as log:
            return subprocess.Popen(
                python("trnflow.tasks.tracking.follower:follow_run", str(self._home), unsent.run),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _await(self, unsent: Unsent, process: subprocess.Popen[bytes], event: RunEnded) -> None:
        """Wait until all is sent, and note if it is not."""
        seconds = min(self._wait_seconds, CANCELLED_WAIT_SECONDS if event["outcome"] == "cancelled" else WAIT_SECONDS)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and process.poll() is None and unsent.exists():
            time.sleep(0.05)
        process.returncode = process.poll() or 0  # it may outlive us, which `Popen` would warn about
        if event["lost"]:
            self.note = (
                f"MLflow lacks {event['lost']} events that could not be written to {unsent.log}: is the disk full?"
            )
        elif unsent.warning.exists():
            self.note = unsent.warning.read_text(encoding="utf-8").strip()
        elif old := sorted((self._home / "tracking").glob("*.jsonl")):
            self.note = (
                f"{len(old)} runs of an earlier version of trnflow, such as {old[0]}, were never sent to MLflow: run "
                "anything with that version to send them, or remove the files"
            )
