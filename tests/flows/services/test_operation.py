"""The commands of docs/prefect.md, as written there, in an empty home; a schedule that fires; a run that is cancelled."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.flows.prefect_api import PROJECT, Api
from tests.helpers.event_logs import process_logs, runs_with_metrics
from tests.helpers.waiting import wait_for

pytestmark = pytest.mark.slow  # one costly fixture for the whole file

QUICK = ["tracking.enabled=false", "data.limit=50"]


def documented_commands() -> list[str]:
    """The `make` commands of the section on the server in docs/prefect.md."""
    section = (PROJECT / "docs/prefect.md").read_text().partition("## Server, worker, pages")[2].partition("\n## ")[0]
    return re.findall(r"^    (make \w+) ", section, re.MULTILINE)


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The API of a server, with deployments and a worker, all begun by the documented commands."""
    empty = tmp_path_factory.mktemp("empty")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "TRNFLOW_", "MAKE"))}
    environ = kept | {"HOME": str(empty), "TRNFLOW_HOME": str(empty / "home"), "DO_NOT_TRACK": "1"}
    environ["TMPDIR"] = str(tmp_path_factory.mktemp("temporary"))
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, [sys.executable, "-m", "trnflow", "down"], cwd=PROJECT, env=environ, timeout=60)
        printed = ""
        for command in documented_commands():
            if command == "make worker":
                worker = subprocess.Popen(command.split(), cwd=PROJECT, env=environ, start_new_session=True)
                stack.callback(_end, worker)
                continue
            done = subprocess.run(
                command.split(), cwd=PROJECT, env=environ, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            printed += done.stdout
        state = json.loads((empty / "home/prefect/server.json").read_text())
        assert state["url"].removesuffix("/api") in printed
        api = Api(empty / "home", state["url"])
        api.environ = environ | {name: api.environ[name] for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING")}
        yield api


def _end(worker: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGTERM)
    worker.wait(60)


def test_the_documented_commands_are_found() -> None:
    assert documented_commands() == ["make up", "make deploy", "make worker", "make ui"]


def test_a_schedule_fires_and_its_run_completes(operated: Api) -> None:
    deployment = operated.get("deployments/name/finetune/finetune")["id"]
    schedule = {
        # again and again: a crowded server may plan its runs only after the first firing has passed
        "schedule": {"interval": 20, "anchor_date": (datetime.now(UTC) + timedelta(seconds=8)).isoformat()},
        "active": True,
        "parameters": {"recipe": "demo", "overrides": QUICK, "until": "format_prompts"},
    }
    made = operated.post_list(f"deployments/{deployment}/schedules", [schedule])[0]

    def completed() -> list[dict[str, Any]]:
        runs = operated.post("flow_runs/filter", deployments={"id": {"any_": [deployment]}}, sort="START_TIME_ASC")
        assert not [run["state"] for run in runs if run["state_type"] in ("FAILED", "CRASHED")]
        return [run for run in runs if run["state_type"] == "COMPLETED"]

    try:
        run = wait_for(completed, 240)[0]
    finally:
        operated.delete(f"deployments/{deployment}/schedules/{made['id']}")
    assert run["auto_scheduled"] is True
    assert run["created_by"]["type"] == "SCHEDULE"
    assert operated.task_states(run["id"], 2) == {"load_data": "Completed", "format_prompts": "Completed"}


def test_the_nightly_retrain_is_planned(operated: Api) -> None:
    deployment = operated.get("deployments/name/retrain/retrain")["id"]
    runs = operated.post("flow_runs/filter", deployments={"id": {"any_": [deployment]}})
    assert {run["state_type"] for run in runs} == {"SCHEDULED"}
    assert {run["expected_start_time"][11:16] for run in runs} == {"03:00"}


def test_a_run_that_is_cancelled_is_on_record_as_cancelled(operated: Api) -> None:
    deployment = operated.get("deployments/name/finetune/finetune")["id"]
    overrides = ["data.limit=400", "train.epochs=500", "train.engine=native", "train.devices=1"]
    run = operated.post(
        f"deployments/{deployment}/create_flow_run", parameters={"recipe": "demo", "overrides": overrides}
    )["id"]
    wait_for(lambda: process_logs(operated.home, "train"), 300)
    assert not [*Path(operated.environ["TMPDIR"]).glob("prefect-workspace-*")]
    assert [*operated.home.glob("work/*/*prefect")], (
        "the worker's temporary files go with the next run, if it is killed"
    )
    operated.prefect("flow-run", "cancel", run)
    wait_for(lambda: operated.get(f"flow_runs/{run}")["state_type"] == "CANCELLED", 180)
    records = [json.loads(file.read_text()) for file in (operated.home / "store/runs").glob("*.json")]
    assert [record["outcome"] for record in records if record["outcome"] != "completed"] == ["cancelled"]


def test_a_deployed_run_goes_on_to_its_end_when_the_server_goes_away(operated: Api) -> None:
    """Last in this file: the server does not come back."""
    deployment = operated.get("deployments/name/finetune/finetune")["id"]
    overrides = ["data.limit=60", "train.engine=native", "train.devices=1", "train.epochs=40", "tracking.enabled=false"]
    before = {*(operated.home / "store/runs").iterdir()}
    operated.post(f"deployments/{deployment}/create_flow_run", parameters={"recipe": "demo", "overrides": overrides})
    logs = runs_with_metrics(operated.home)
    wait_for(lambda: runs_with_metrics(operated.home) - logs, 300)
    os.kill(json.loads((operated.home / "prefect/server.json").read_text())["pid"], signal.SIGKILL)
    (file,) = wait_for(lambda: {*(operated.home / "store/runs").iterdir()} - before, 400)
    record = json.loads(file.read_text())
    assert record["outcome"] == "completed"
    assert {stage["stage"]: stage["action"] for stage in record["stages"]}["evaluate_model"] == "ran"
