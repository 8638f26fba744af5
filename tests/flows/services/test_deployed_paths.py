"""A deployed run reads relative paths from the folder it was deployed from, wherever its worker was started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.prefect_api import Api, own_server
from tests.flows.recipes.test_relative_paths import rows

DEPLOYMENTS = """
name: mine
deployments:
  - name: finetune
    entrypoint: trnflow.flows.deployments.finetune
    parameters: {recipe: recipes/mine.yaml, overrides: [data.source=rows, tracking.enabled=false], until: load_data}
    work_pool: {name: local}
"""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    home = tmp_path / "server/.trnflow"
    with own_server(home) as url:
        found = Api(home, url)
        del found.environ["TRNFLOW_HOME"]
        yield found


def test_a_deployed_run_reads_from_the_folder_it_was_deployed_from(api: Api, tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    rows(project / "rows", "deployed", count=20)
    rows(elsewhere / "rows", "elsewhere")
    rows(project / "recipes/held", "held", ("validation",))
    (project / "prefect.yaml").write_text(DEPLOYMENTS)
    (project / "recipes/mine.yaml").write_text(
        "extends: demo\ndata: {name: null, text: text, label: label, splits: {train: train, validation: held/validation.csv}}\n"
    )
    run(api, project, "-m", "trnflow", "deploy")
    deployment = api.get("deployments/name/finetune/finetune")["id"]
    made = api.post(f"deployments/{deployment}/create_flow_run")["id"]
    run(api, elsewhere, "-m", "prefect", "worker", "start", "--pool", "local", "--run-once")
    found = api.get(f"flow_runs/{made}")
    assert found["state_type"] == "COMPLETED", found["state"]
    (record,) = (project / ".trnflow/store/runs").glob("*.json")
    document = json.loads(record.read_text())
    assert document["stages"][0]["metrics"]["train_rows"] == 20
    assert document["resolved"]["data"]["source"] == "rows"
    assert not (elsewhere / ".trnflow").exists()


def run(api: Api, folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=api.environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
