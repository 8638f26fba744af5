"""What becomes of a run that is ended from outside, or whose Prefect server goes away: its exit code, its records."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.flows.prefect_api import Api
from tests.helpers.event_logs import process_logs, runs_with_metrics
from tests.helpers.products import sampled
from tests.helpers.waiting import wait_for
from trnflow.flows.services.prefect_address import recorded_server

SHORT = ["data.limit=60", "train.global_batch=32", "train.engine=native", "train.devices=1", "train.epochs=1"]
ENDLESS = ["data.limit=60", "train.engine=native", "train.devices=1", "train.epochs=5000"]


@pytest.fixture(scope="module")
def api(own_api: Api) -> Api:
    return own_api


def start(api: Api, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trnflow", "run", "demo", "--json", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environ = {name: value for name, value in api.environ.items() if name != "MLFLOW_TRACKING_URI"}
    return subprocess.Popen(command, cwd=api.home.parent, env=environ, text=True, **pipes)


def newest_record(api: Api) -> dict[str, object]:
    return json.loads(max((api.home / "store/runs").glob("*.json")).read_text())


def logs_of_precompile(api: Api) -> set[Path]:
    return process_logs(api.home, "precompile")


def trains(api: Api, after: float) -> bool:
    """Whether a training process that began later than `after` has reported a step."""
    return bool(runs_with_metrics(api.home, after=after))


@sampled("order, direct", [signal.SIGINT, signal.SIGTERM], [False, True])
def test_an_interrupted_run_is_cancelled_on_every_record(order: signal.Signals, direct: bool, api: Api) -> None:
    begun = time.time()
    run = start(api, *ENDLESS, *(["--direct"] if direct else []))
    try:
        wait_for(lambda: run.poll() is not None or trains(api, begun), 400)
        run.send_signal(order)
        out, err = run.communicate(timeout=200)
    finally:
        run.kill()
    assert run.returncode == 130, err
    assert "Traceback" not in err
    assert json.loads(out)["error"]["type"] == "Interrupted"
    record = newest_record(api)
    assert (record["outcome"], record["run"]) == ("cancelled", json.loads(out)["run"])
    if not direct:
        flow_run = api.post("flow_runs/filter", sort="START_TIME_DESC", limit=1)[0]
        assert flow_run["state_type"] == "CANCELLED"
    wait_for(lambda: mlflow_status(api.home, str(record["run"])) == "KILLED", 60)


def mlflow_status(home: Path, run: str) -> str | None:
    """The status of the pipeline's run in MLflow's own database; None before MLflow made it."""
    with (
        contextlib.suppress(sqlite3.OperationalError),
        sqlite3.connect(f"file:{home}/mlflow.db?mode=ro", uri=True) as database,
    ):
        found = database.execute("select status from runs where name = ?", [f"demo {run}"]).fetchone()
        return found and found[0]
    return None


def test_a_run_whose_server_goes_away_for_good_completes_with_a_note(api: Api) -> None:
    earlier = logs_of_precompile(api)
    run = start(api, *SHORT, "data.shuffle_seed=3")
    try:
        wait_for(lambda: run.poll() is not None or logs_of_precompile(api) - earlier, 400)
        os.kill(recorded_server(api.home)["pid"], signal.SIGKILL)
        out, err = run.communicate(timeout=600)
    finally:
        run.kill()
    assert run.returncode == 0, err
    result = json.loads(out)
    assert {stage["action"] for stage in result["stages"]} == {"ran"}
    assert any("Prefect's server at http://127.0.0.1" in note and "went away" in note for note in result["notes"])
    assert newest_record(api)["outcome"] == "completed"
    assert "Traceback" not in err


def test_a_server_that_is_not_there_is_one_clear_error(api: Api) -> None:
    environ = api.environ | {"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    command = [sys.executable, "-m", "trnflow", "run", "demo", "data.limit=50", "data.shuffle_seed=4"]
    done = subprocess.run(command, cwd=api.home.parent, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "Prefect's server at http://127.0.0.1:9/api can't be reached" in done.stderr
    assert "--direct" in done.stderr
