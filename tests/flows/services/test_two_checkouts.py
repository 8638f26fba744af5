"""Two copies of the project on one Prefect server: the second does not overwrite what the first deployed, unless asked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.flows.prefect_api import Api, own_server
from trnflow.flows.services.checkouts import DIRECTORY

pytestmark = pytest.mark.slow  # one costly fixture for the whole file


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    home = tmp_path_factory.mktemp("server") / ".trnflow"
    with own_server(home) as url:
        found = Api(home, url)
        del found.environ["TRNFLOW_HOME"]  # each checkout has its own
        yield found


def checkout(folder: Path) -> Path:
    for name in ("conf", "trnflow", "flows", "tasks"):
        shutil.copytree(PROJECT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("prefect.yaml", "pyproject.toml"):
        shutil.copy(PROJECT / name, folder / name)
    return folder


def deploy_theirs(api: Api) -> dict[str, Any]:
    """Make a deployment `retrain` of another project's flow, and return it."""
    flow = api.post("flows/", name="their_flow")
    return dict(api.post("deployments/", name="retrain", flow_id=flow["id"], tags=["theirs"], pull_steps=[
        {DIRECTORY: {"directory": "/their/project"}}
    ]))  # fmt: skip


def deploy(api: Api, folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trnflow", "deploy", "--json", *arguments]
    return subprocess.run(command, cwd=folder, env=api.environ | environ, capture_output=True, text=True, timeout=400)


def on_server(api: Api) -> tuple[dict[str, Any], dict[str, Any]]:
    automations = {one["name"]: one for one in api.post("automations/filter")}
    for automation in automations.values():
        automation.pop("updated")
    deployments = {
        one["name"]: (one["id"], one["pull_steps"], one["schedules"])
        for one in api.post("deployments/filter")
        if "trnflow" in one["tags"]
    }
    return deployments, automations


def test_the_second_checkout_is_refused_and_takes_over_when_asked(api: Api, tmp_path: Path) -> None:
    first, second = checkout(tmp_path / "first"), checkout(tmp_path / "second")
    theirs = deploy_theirs(api)
    done = deploy(api, first)
    assert done.returncode == 0, done.stderr
    before = on_server(api)
    assert {"finetune", "prepare", "retrain", "sweep", "watch"} == before[0].keys()

    refused = deploy(api, second)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    error = json.loads(refused.stdout)["error"]
    assert f"has deployments of another checkout, {first}: finetune, prepare, retrain, sweep, watch" in error["message"]
    assert "--replace" in error["fix"]
    assert on_server(api) == before
    again = deploy(api, first)
    assert again.returncode == 0, again.stderr
    assert on_server(api)[1] == before[1]

    before = on_server(api)

    declared = (second / "prefect.yaml").read_text()
    for right, wrong in (("deployments.py:retrain", "deployments.py:retrian"), ('"0 3 * * *"', '"0 33 * * *"')):
        (second / "prefect.yaml").write_text(declared.replace(right, wrong))  # the third of five deployments
        failed = deploy(api, second, "--replace")
        assert f"Prefect refused a deployment of {second}/prefect.yaml: " in failed.stderr
        assert failed.returncode in (1, 2) and "Traceback" not in failed.stderr
        assert on_server(api) == before
    (second / "prefect.yaml").write_text(declared)
    missing = deploy(api, second, "--replace", TRNFLOW_NOTIFY="slack-webhook/none")
    assert "Prefect has no block slack-webhook/none" in missing.stderr
    assert on_server(api) == before

    taken = deploy(api, second, "--replace")
    assert taken.returncode == 0, taken.stderr
    deployments, automations = on_server(api)
    assert {steps[0][DIRECTORY]["directory"] for _, steps, _ in deployments.values()} == {str(second)}
    assert deployments.keys() == before[0].keys()  # no trials
    (action,) = automations["trnflow: data changed"]["actions"]
    assert action["deployment_id"] == deployments["retrain"][0]
    assert f"another checkout, {second}:" in deploy(api, first).stderr
    now = api.get(f"deployments/{theirs['id']}")  # another project's flow, with a deployment of the same name
    assert {name: now[name] for name in ("tags", "job_variables", "updated")} == {
        name: theirs[name] for name in ("tags", "job_variables", "updated")
    }
