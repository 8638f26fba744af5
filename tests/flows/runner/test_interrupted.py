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
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.flows.prefect_api import Api
from tests.helpers.command_line import Shell
from tests.helpers.event_logs import process_logs, runs_with_metrics
from tests.helpers.products import sampled
from tests.helpers.serving import QuietHandler, address_of, serving
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


@pytest.mark.parametrize("answer", ["a dead port", "403"])
def test_servers_that_refuse_are_a_warning_before_the_first_stage_and_the_run_goes_on(
    trnflow: Shell, answer: str
) -> None:
    with refusing_server() if answer == "403" else nullcontext("http://127.0.0.1:9") as url:
        addresses = {"PREFECT_API_URL": f"{url}/api", "MLFLOW_TRACKING_URI": url}
        environ = {**trnflow.environ, **addresses, "TRNFLOW_HOME": str(trnflow.folder / "home")}
        command = [sys.executable, "-m", "trnflow", "run", "mine.yaml", "--until", "load_data", "--json"]
        done = subprocess.run(command, cwd=trnflow.folder, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    warning = f"Prefect's server at {url}/api can't be reached"
    assert done.stderr.index(f"warning: {warning}") < done.stderr.index("load_data ...")
    notes = json.loads(done.stdout)["notes"]
    assert any(warning in note for note in notes) and any(f"MLflow at {url} " in note for note in notes)


def test_a_server_that_answers_and_has_lost_its_database_is_a_warning(trnflow: Shell) -> None:
    with refusing_server(500, is_alive=True) as url:
        environ = {**trnflow.environ, "PREFECT_API_URL": f"{url}/api", "TRNFLOW_HOME": str(trnflow.folder / "home")}
        command = [sys.executable, "-m", "trnflow", "run", "mine.yaml", "--until", "load_data", "--json"]
        command.append("tracking.enabled=false")
        done = subprocess.run(command, cwd=trnflow.folder, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"warning: Prefect's server at {url}/api failed: " in done.stderr and "Traceback" not in done.stderr
    (note,) = json.loads(done.stdout)["notes"]
    assert note.endswith("the run goes on without Prefect")


@contextmanager
def refusing_server(status: int = 403, *, is_alive: bool = False) -> Iterator[str]:
    """Answer every request with `status`; yield the URL. is_alive: but those for health and version."""

    class Refusing(QuietHandler):
        def refuse(self) -> None:
            self.body()
            self.send_error(status)

        def do_GET(self) -> None:
            if is_alive and self.path.endswith(("/health", "/version")):
                self.answer(200, b'"3.8.8"')  # of /admin/version
            else:
                self.refuse()

        do_POST = refuse

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Refusing)) as server:
        yield address_of(server)
