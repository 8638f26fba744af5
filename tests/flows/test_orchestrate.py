"""Prefect, for real: a standing server, a deployment, a work pool and a worker, from deploy to COMPLETED."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.server import ensure_server, stop_server

PROJECT = Path(__file__).resolve().parents[2]
QUICK = ["tracking.enabled=false", "data.limit=50"]


class Api:
    """A standing server with a home of its own."""

    def __init__(self, home: Path, url: str) -> None:
        self.home = home
        self.url = url
        self.environ = {
            **os.environ, "PREFECT_API_URL": url, "PREFECT_HOME": str(home / "client"), "TRNFLOW_HOME": str(home),
            "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }  # fmt: skip

    def post(self, path: str, **body: Any) -> Any:
        request = urllib.request.Request(
            f"{self.url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/{path}", timeout=30) as answer:
            return json.load(answer)

    def prefect(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            cwd=PROJECT, env=self.environ, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def task_states(self, flow_run: str) -> dict[str, str]:
        runs = self.post("task_runs/filter", flow_runs={"id": {"any_": [flow_run]}})
        return {run["name"]: run["state_name"] for run in runs}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    home = tmp_path_factory.mktemp("house") / ".trnflow"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        url = ensure_server(home)
    try:
        yield Api(home, url)
    finally:
        stop_server(home)


def test_the_command_line_shows_its_stages_to_prefect(api: Api, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows", "run", "demo", "--json", "--until", "format_prompts", *QUICK]
    done = subprocess.run(command, cwd=tmp_path, env=api.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [stage["action"] for stage in json.loads(done.stdout)["stages"]] == ["ran", "ran"]
    run = api.post("flow_runs/filter", sort="START_TIME_DESC", limit=1)[0]
    assert (run["name"], run["state_type"]) == ("demo", "COMPLETED")
    assert api.task_states(run["id"]) == {"load_data": "Completed", "format_prompts": "Completed"}
    artifacts = {artifact["key"]: artifact for artifact in api.post("artifacts/filter")}
    assert {"load-data", "load-data-manifest", "format-prompts", "run"} <= artifacts.keys()
    assert "train_rows" in artifacts["load-data"]["data"]


def test_a_deployed_run_completes_and_the_next_shows_cached_tasks(api: Api) -> None:
    api.prefect("work-pool", "create", "local", "--type", "process", "--overwrite")
    api.prefect("deploy", "--all")
    schedules = api.get("deployments/name/retrain/retrain")["schedules"]
    assert [schedule["schedule"]["cron"] for schedule in schedules] == ["0 3 * * *"]
    parameters = {"recipe": "demo", "overrides": [*QUICK, "data.shuffle_seed=7"]}
    states = []
    for name, further in (("finetune", {"until": "tokenize_text"}), ("prepare", {})):
        deployment = api.get(f"deployments/name/{name}/{name}")["id"]
        run = api.post(f"deployments/{deployment}/create_flow_run", parameters=parameters | further)["id"]
        api.prefect("worker", "start", "--pool", "local", "--run-once")
        found = api.get(f"flow_runs/{run}")
        assert found["state_type"] == "COMPLETED", found["state"]
        states.append(api.task_states(run))
    assert states[0] == dict.fromkeys(("load_data", "format_prompts", "tokenize_text"), "Completed")
    assert states[1] == dict.fromkeys(("load_data", "format_prompts", "tokenize_text"), "Cached") | {
        "pack_chunks": "Completed"
    }


TOY = """
import sys
from pathlib import Path
from prefect import flow
from flows.orchestrate import PrefectLog, PrefectRunner
from tasks.resolve import Resolver
from tasks.store import Store
from tests.flows.toy import CountConfig, WordsConfig, pipeline

@flow(name="toy", flow_run_name=sys.argv[2])
def toy():
    store = Store(str(Path(sys.argv[1]) / "store"), Path(sys.argv[1]) / "home")
    store.prepare()
    runner = PrefectRunner(store, Resolver(store.home), run="r", listeners=(PrefectLog(),))
    pipeline(WordsConfig(path=sys.argv[1] + "/words.txt"), CountConfig(least=int(sys.argv[3])), runner)

toy()
"""


def test_a_deferred_stage_shows_when_it_is_wanted_and_hits_are_cached(api: Api, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a bb ccc")
    seen = {}
    for name, least in (("first", 1), ("again", 1), ("changed", 2)):
        command = [sys.executable, "-c", TOY, str(tmp_path), name, str(least)]
        done = subprocess.run(command, cwd=PROJECT, env=api.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        run = api.post("flow_runs/filter", flow_runs={"name": {"any_": [name]}})[0]
        seen[name] = api.task_states(run["id"])
    stages = ("words", "sizes", "warm_up", "count")
    assert seen["first"] == dict.fromkeys(stages, "Completed")
    assert seen["again"] == {"words": "Cached", "sizes": "Cached", "count": "Cached"}
    assert seen["changed"] == dict.fromkeys(stages, "Cached") | {"count": "Completed"}
    said = [log["message"] for log in api.post("logs/filter", logs={"level": {"ge_": 20}}, limit=200)]
    assert any("count: ran" in line for line in said)


def test_a_failing_stage_fails_its_task_and_the_flow_with_the_reason(api: Api, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\na,x\nb,y\n")
    (tmp_path / "mine.yaml").write_text(
        "extends: demo\nname: broken\ndata: {source: rows.csv, name: null, text: text, label: label, labels: [x, z]}\n"
    )
    command = [sys.executable, "-m", "flows", "run", "mine.yaml", "--json", "tracking.enabled=false"]
    done = subprocess.run(command, cwd=tmp_path, env=api.environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    error = json.loads(done.stdout)["error"]
    assert (error["stage"], error["type"]) == ("load_data", "DataError")
    run = api.post("flow_runs/filter", sort="START_TIME_DESC", limit=1)[0]
    assert run["state_type"] == "FAILED"
    assert "rows.csv" in run["state"]["message"]
