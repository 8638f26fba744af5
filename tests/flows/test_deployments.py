"""Prefect, for real: a standing server, a deployment, a work pool and a worker, from deploy to COMPLETED."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.prefect_api import PROJECT, Api

QUICK = ["tracking.enabled=false", "data.limit=50"]


def test_the_command_line_shows_its_stages_to_prefect(api: Api, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trnflow", "run", "demo", "--json", "--until", "format_prompts", *QUICK]
    done = subprocess.run(command, cwd=tmp_path, env=api.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [stage["action"] for stage in json.loads(done.stdout)["stages"]] == ["ran", "ran"]
    run = api.newest_run('"format_prompts"', *QUICK)
    assert (run["name"], run["state_type"]) == ("demo", "COMPLETED")
    assert api.task_states(run["id"], 2) == {"load_data": "Completed", "format_prompts": "Completed"}
    artifacts = {artifact["key"]: artifact for artifact in api.post("artifacts/filter")}
    assert {"load-data", "format-prompts", "run"} <= artifacts.keys()
    assert "train_rows" in artifacts["load-data"]["data"]
    assert "file://" not in json.dumps(artifacts)  # browsers open no such link
    assert "`trnflow report 2" in artifacts["run"]["data"]


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
        states.append(api.task_states(run, 3 + len(states)))
    assert states[0] == dict.fromkeys(("load_data", "format_prompts", "tokenize_text"), "Completed")
    assert states[1] == dict.fromkeys(("load_data", "format_prompts", "tokenize_text"), "Cached") | {
        "pack_chunks": "Completed"
    }


@pytest.mark.slow
def test_a_deployed_run_that_changes_nothing_adds_nothing_to_mlflow(api: Api, tmp_path: Path) -> None:
    """Nor does it start an upload, for which it would have to wait."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    (tmp_path / "mine.yaml").write_text(f"extends: demo\nstore: {{root: store}}\ntracking: {{uri: '{uri}'}}\n")
    script = "from trnflow.flows.deployments import prepare; prepare('mine.yaml', ['data.limit=50'])"
    environ = api.environ | {"TRNFLOW_HOME": str(tmp_path / "home")}

    def actions() -> list[str]:
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environ, check=True)
        newest = max((tmp_path / "store/runs").iterdir())
        return [stage["action"] for stage in json.loads(newest.read_text())["stages"]]

    def there() -> dict[str, bytes]:
        files = [
            tmp_path / "mlflow.db",
            *(tmp_path / "home/tracking").rglob("*"),
            *tmp_path.glob("home/runs/*/mlflow/*"),
        ]
        return {str(file): file.read_bytes() for file in files if file.is_file()}

    assert actions() == ["ran"] * 4
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    number = client.get_experiment_by_name("trnflow").experiment_id
    assert len(client.search_runs([number], "tags.`trnflow.stage` = ''")) == 1
    before = there()
    assert actions() == ["hit"] * 4
    assert there() == before


TOY = """
import sys
from pathlib import Path
from prefect import flow
from trnflow.flows.services.run_view.artifacts import Page
from trnflow.flows.services.run_view.stage_tasks import PrefectLog, StageTasks
from trnflow.tasks.store import Store
from tests.flows.runner.toy import CountConfig, WordsConfig, graph
from tests.helpers.runs import context
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import run

@flow(name="toy", flow_run_name=sys.argv[2])
def toy():
    store = Store(str(Path(sys.argv[1]) / "store"), Path(sys.argv[1]) / "home")
    store.prepare()
    toy = graph(WordsConfig(path=sys.argv[1] + "/words.txt"), CountConfig(least=int(sys.argv[3])))
    run(toy, context(store, PrefectLog()), Options(), around=StageTasks(Page(), store))

toy()
"""


def test_a_deferred_stage_shows_when_it_is_wanted_and_hits_are_cached(api: Api, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a bb ccc")
    seen, runs = {}, {}
    for name, least in (("first", 1), ("again", 1), ("changed", 2)):
        command = [sys.executable, "-c", TOY, str(tmp_path), name, str(least)]
        done = subprocess.run(command, cwd=PROJECT, env=api.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        run = api.post("flow_runs/filter", flow_runs={"name": {"any_": [name]}})[0]
        runs[name] = run["id"]
        seen[name] = api.task_states(run["id"], 3 if name == "again" else 4)
    stages = ("words", "sizes", "warm_up", "count")
    assert seen["first"] == dict.fromkeys(stages, "Completed")
    assert seen["again"] == {"words": "Cached", "sizes": "Cached", "count": "Cached"}
    assert seen["changed"] == dict.fromkeys(stages, "Cached") | {"count": "Completed"}
    mine = {"level": {"ge_": 20}, "flow_run_id": {"any_": [runs["changed"]]}}
    said = [log["message"] for log in api.post("logs/filter", logs=mine, limit=200)]
    assert any("count: ran" in line for line in said)


def test_a_failing_stage_fails_its_task_and_the_flow_with_the_reason(api: Api, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\na,x\nb,y\n")
    (tmp_path / "mine.yaml").write_text(
        "extends: demo\nname: broken\ndata: {source: rows.csv, name: null, text: text, label: label, labels: [x, z]}\n"
    )
    command = [sys.executable, "-m", "trnflow", "run", str(tmp_path / "mine.yaml"), "--json", "tracking.enabled=false"]
    done = subprocess.run(command, cwd=tmp_path, env=api.environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    error = json.loads(done.stdout)["error"]
    assert (error["stage"], error["type"]) == ("load_data", "DataError")
    run = api.newest_run(str(tmp_path))
    assert run["state_type"] == "FAILED"
    assert "rows.csv" in run["state"]["message"]
