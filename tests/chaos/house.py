"""A project in a temporary folder, operated for real: Prefect server, worker, the deployment `retrain` on a schedule, MLflow.

Every process of the house, and every process that these start, has the variable TRNFLOW_CHAOS in its environment. `processes`
finds them by it, whoever their parent is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.chaos.data import NAMES, write_project
from tests.flows.prefect_api import Api
from tests.helpers.event_logs import process_logs
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import blob_name

GZIP = b"\x1f\x8b"
MARK = "TRNFLOW_CHAOS"
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
EVENTS = {"event": {"prefix": ["trnflow.retrain."]}}


class House:
    """The project, its services and its commands.

    Args:
        folder: An empty folder.
        every: Seconds between two firings of the schedule.
        environ: Further environment variables of all processes, for example TRNFLOW_STORE.
    """

    def __init__(self, folder: Path, every: int, recipe: str = "", environ: dict[str, str] | None = None) -> None:
        self.folder, self.every = folder, every
        self.home = folder / ".trnflow"
        self.mark = uuid.uuid4().hex
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "TRNFLOW"))}
        self.environ = kept | {
            "HOME": str(folder), MARK: self.mark, "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        } | (environ or {})  # fmt: skip
        self.worker: subprocess.Popen[bytes] | None = None
        self.first = datetime.now(UTC)
        write_project(folder, recipe)

    @property
    def api(self) -> Api:
        return Api(self.home, json.loads((self.home / "prefect/server.json").read_text())["url"])

    def trnflow(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trnflow", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=900
        )  # fmt: skip

    def must(self, *arguments: str) -> str:
        """Run a command of trnflow that has to succeed; return what it printed."""
        done = self.trnflow(*arguments)
        assert done.returncode == 0, f"trnflow {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def open(self) -> None:
        """Start the server and the worker, and deploy `retrain` with a schedule that fires every `every` seconds."""
        self.up()
        self.declare()
        self.must("deploy")
        self.start_worker()

    def declare(self) -> None:
        """Write prefect.yaml: the deployment `retrain`, first fired `every` seconds from now."""
        self.first = (datetime.now(UTC) + timedelta(seconds=self.every)).replace(microsecond=0)
        (self.folder / "prefect.yaml").write_text(DEPLOYMENT.format(every=self.every, first=self.first.isoformat()))

    def up(self) -> None:
        """Start the server. On a crowded machine it may take longer than `trnflow up` waits for it."""
        wait_for(lambda: self.trnflow("up").returncode == 0, 600, "the Prefect server answers")

    def start_worker(self) -> None:
        with (self.folder / "worker.log").open("ab") as log:
            self.worker = subprocess.Popen(
                [sys.executable, "-m", "trnflow", "worker"], cwd=self.folder, env=self.environ, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def stop_schedule(self) -> None:
        """Delete the schedule, and with it the runs that are not due yet."""
        found = self.deployment()
        for schedule in found["schedules"]:
            self.api.delete(f"deployments/{found['id']}/schedules/{schedule['id']}")

    def close(self) -> list[str]:
        """Stop worker and server; return the command lines of the processes that are left after a minute."""
        if self.worker and self.worker.poll() is None:
            self.worker.terminate()  # it alone: it passes the signal on, and Prefect's worker hangs if it gets two
            with contextlib.suppress(subprocess.TimeoutExpired):  # it is among the processes that are left
                self.worker.wait(120)
        self.trnflow("down")
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self.processes(), 60, "no process is left")
        return list(self.processes().values())

    def kill_all(self) -> None:
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def deployment(self) -> Any:
        return self.api.get("deployments/name/retrain/retrain")

    def runs(self) -> list[dict[str, Any]]:
        """All flow runs of the deployment, by their time in the schedule."""
        wanted = {"id": {"any_": [self.deployment()["id"]]}}
        found: list[dict[str, Any]] = []
        while len(page := self.api.post(
            "flow_runs/filter", deployments=wanted, sort="EXPECTED_START_TIME_ASC", limit=200, offset=len(found)
        )) == 200:  # fmt: skip
            found += page
        return found + page

    def events(self) -> dict[str, list[dict[str, Any]]]:
        """{id of a flow run: the events `trnflow.retrain.*` that it emitted, in their order}. A run that went round twice
        emitted two. An event that comes while pages are read moves the others, so one may stand on two pages."""
        page = self.api.post("events/filter", filter=EVENTS, limit=50)
        found = {event["id"]: event for event in page["events"]}
        while page["next_page"]:
            page = self.api.get(page["next_page"].partition("/api/")[2])
            found |= {event["id"]: event for event in page["events"]}
        events: dict[str, list[dict[str, Any]]] = {}
        for event in sorted(found.values(), key=lambda one: str(one["occurred"])):
            (run,) = (
                one["prefect.resource.id"].removeprefix("prefect.flow-run.")
                for one in event["related"]
                if one["prefect.resource.id"].startswith("prefect.flow-run.")
            )
            events.setdefault(run, []).append(event)
        return events

    def records(self) -> list[dict[str, Any]]:
        """The run records of a store that is a folder."""
        files = sorted((self.home / "store/runs").glob("*.json"))
        return [json.loads(file.read_text()) for file in files]

    def logged(self) -> dict[str, str]:
        """{run: its outcome} of the runs whose event log has an end."""
        ends = {
            file.parent.name: json.loads(file.read_bytes().splitlines()[-1])
            for file in self.home.glob("runs/*/events.jsonl")
        }
        return {run: end["outcome"] for run, end in ends.items() if end["event"] == "run_ended"}

    def processes(self) -> dict[int, str]:
        """{id: command line} of the running processes of this house."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                        words = (folder / "cmdline").read_bytes().split(b"\0")
                        found[int(folder.name)] = b" ".join(words).decode(errors="replace")[:300].strip()
        return found

    def trainings(self) -> set[str]:
        """The logs of all trainings that were begun here."""
        return {file.name for file in process_logs(self.home, "train")}

    def break_blob(self) -> None:
        """Cut the test rows of the newest run in half, in a store that is a folder. The next run makes the same bytes."""
        (load_data, *_) = self.records()[-1]["stages"]
        files = Store(str(self.home / "store"), self.home).artifact(load_data["artifact"]).files
        (rows,) = (file for file in files if file.path == "test.parquet")
        blob = self.home / "store" / blob_name(rows.digest)
        half = blob.read_bytes()[: rows.size // 2]
        blob.unlink()
        blob.write_bytes(half)

    def put(self, train: bytes) -> None:
        """Replace the training rows at once, as a careful writer of data does. train: plain, or compressed by gzip."""
        new, rows = self.folder / "train.jsonl.new", self.folder / "rows"
        file = rows / ("train.jsonl.gz" if train.startswith(GZIP) else "train.jsonl")
        new.write_bytes(train)
        for other in {*rows.glob("train.*")} - {file}:
            other.unlink()
        new.replace(file)


DEPLOYMENT = f"""
name: week
deployments:
  - name: retrain
    entrypoint: trnflow.flows.deployments.retrain
    parameters: {{{{recipe: {NAMES.recipe}, overrides: []}}}}
    work_pool: {{{{name: local}}}}
    schedules: [{{{{interval: {{every}}, anchor_date: "{{first}}", timezone: UTC}}}}]
"""


def wait_for(found: Callable[[], Any], seconds: float, what: str) -> Any:
    """Call `found` every two seconds until it returns something true; AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(2)
    return value


def is_final(run: dict[str, Any]) -> bool:
    return run["state_type"] in FINAL


def time_of(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
