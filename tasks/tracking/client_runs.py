"""Write a run's events by the clients of Weights & Biases and Trackio, in a process of its own that follows the event log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import MissingDependency
from trnflow.tasks.events import Event, Reader, RunState, follow, has_end, is_written, log_file
from trnflow.tasks.launch.python import python
from trnflow.tasks.system.child_environ import without_logins
from trnflow.tasks.system.redaction import Scrubbed, scrub_logs, without_secrets
from trnflow.tasks.tracking.mlflow_values import numbers

if TYPE_CHECKING:
    from trnflow.tasks.events.event_types import RunBegun

WAIT_SECONDS = 10.0
"""The longest wait for the process when the run ends: a container may end with it."""
PAUSE_SECONDS = 0.2

QUIET = {
    "DO_NOT_TRACK": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
}


class ClientRuns(Reader):
    """Starts the process when a stage has something to show; runs of hits alone start none.

    Args:
        home: The folder of local state. Trackio's files and W&B's offline runs lie in `<home>/<package>`.
        package: wandb or trackio. Raises MissingDependency if it is not installed.
    """

    def __init__(self, home: Path, package: str) -> None:
        if find_spec(package) is None:
            raise MissingDependency(
                f"tracking.also names {package}, which is not installed", f"pip install 'trnflow[{package}]'"
            )
        self._home, self._package = home, package
        self._run = ""
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "run_begun":
            self._run, self._process = event["run"], None
        elif self._process is None and _shown(event):
            self._process = self._start()
        elif event["event"] == "run_ended" and self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(WAIT_SECONDS)
            if self._process.poll():
                self.note = f"{self._package} did not take this run: {self._log}"
            self._process.returncode = self._process.poll() or 0  # it may outlive us, which `Popen` would warn about

    @property
    def _log(self) -> Path:
        return self._home / self._package / "client.log"

    def _start(self) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(exist_ok=True)
        # a client has threads, a server and questions of its own: none of them may be the run's
        environ = {"WANDB_MODE": "offline", "TRACKIO_DIR": str(self._log.parent), **without_logins(os.environ), **QUIET}
        with self._log.open("wb") as log:
            return subprocess.Popen(
                python(f"{__name__}:write", self._package, str(self._home), self._run),
                env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip


def write(package: str, home: str, run: str) -> None:
    """Main function of the process: give the events of `run` to a tracker until that run has ended or died."""
    os.nice(5)
    scrub_logs()
    sys.stdout, sys.stderr = Scrubbed(sys.stdout), Scrubbed(sys.stderr)
    tracker: _Wandb | _Trackio | None = None
    steps: dict[str, int] = {}
    failed = True
    for event in _events(log_file(Path(home), run)):
        if event["event"] == "run_begun":
            tracker = (_Wandb if package == "wandb" else _Trackio)(event, Path(home, package))
        elif event["event"] == "run_ended":
            failed = event["outcome"] != "completed"
        elif tracker is not None and (values := _shown(event)):
            assert event["event"] in ("metrics", "stage_ended")
            stage = event["stage"]
            if event["event"] == "metrics":
                steps[stage] = event["step"]
                tracker.log(stage, values, event["step"])
            else:
                tracker.reach(values, steps.get(stage, 0))
    if tracker is not None:
        tracker.finish(failed=failed)


def _events(file: Path) -> Iterator[Event]:
    """Yield a run's events as they are written, until it has ended or died."""
    offset = 0
    while True:
        is_over = has_end(file) or not is_written(file)
        events, offset = follow(file, offset)
        yield from events
        if not events and is_over:
            return
        if not events:
            time.sleep(PAUSE_SECONDS)


def _shown(event: Event) -> Meta:
    """Return {stage/name: number} of an event that trackers show."""
    if event["event"] == "metrics":
        values: Meta = dict(event["values"])
    elif event["event"] == "stage_ended" and event["action"] == "ran":
        values = {**event["metrics"], **event["figures"]}
    else:
        return {}
    return {f"{event['stage']}/{name}": value for name, value in numbers(values).items()}


class _Wandb:
    """A run of Weights & Biases: offline unless the variable WANDB_MODE says otherwise."""

    def __init__(self, begun: RunBegun, folder: Path) -> None:
        wandb: Any = import_module("wandb")
        # nothing of this machine or checkout but what the events say
        settings = wandb.Settings(
            console="off", disable_git=True, disable_code=True, x_disable_meta=True, x_disable_machine_info=True,
            x_disable_stats=True, x_save_requirements=False,
        )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=begun["recipe"], name=begun["run"], group=begun["parent"], job_type=begun["kind"],
            config=without_secrets(begun["settings"]), dir=folder, settings=settings,
        )  # fmt: skip

    def log(self, stage: str, values: Meta, step: int) -> None:
        at = f"{stage}/step"  # steps begin anew in each stage, and W&B's own never go back
        self._run.define_metric(f"{stage}/*", step_metric=at)
        self._run.log({**values, at: step})

    def reach(self, values: Meta, step: int) -> None:
        self._run.summary.update(values)

    def finish(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class _Trackio:
    """A run of Trackio, in its database of this machine."""

    def __init__(self, begun: RunBegun, folder: Path) -> None:
        trackio: Any = import_module("trackio")
        self._run = trackio.init(
            project=begun["recipe"], name=begun["run"], group=begun["parent"], auto_log_cpu=False, auto_log_gpu=False,
            config=without_secrets(begun["settings"]),
        )  # fmt: skip

    def log(self, stage: str, values: Meta, step: int) -> None:
        self._run.log(values, step=step)

    def reach(self, values: Meta, step: int) -> None:
        # it has no summary: the last step has what a stage reached
        self._run.log(values, step=step)

    def finish(self, *, failed: bool) -> None:
        self._run.finish()
