"""Two copies of the project on one Prefect server: each has its deployments, and its worker runs them alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.flows.prefect_api import Api, own_server
from tests.helpers.checkouts import copy_program
from tests.helpers.waiting import wait_for
from trnflow.flows.services.checkouts import DIRECTORY

pytestmark = pytest.mark.slow  # one costly fixture for the whole file


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    home = tmp_path_factory.mktemp("server") / ".trnflow"
    with own_server(home) as url:
        found = Api(home, url)
        del found.environ["TRNFLOW_HOME"]  # each checkout has its own
        yield found


def checkout(folder: Path) -> Path:
    copy_program(folder)
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


def planned(deployments: dict[str, Any]) -> dict[str, Any]:
    """{name: (id, crons)}; a deployment that is registered again has new schedules."""
    return {name: (id, [one["schedule"]["cron"] for one in plans]) for name, (id, _, plans) in deployments.items()}


NAMES = {"finetune", "prepare", "retrain", "sweep", "watch"}


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["two", "three"])
def test_the_second_checkout_has_deployments_of_its_own_and_takes_over_when_asked(
    api: Api, tmp_path: Path, whole: bool
) -> None:
    """whole: also a third of the second's name, every one deployed again, and more that Prefect refuses."""
    first, second, third = (checkout(tmp_path / name) for name in ("first", "second", "more/second"))
    theirs = deploy_theirs(api)
    alone = deploy(api, first, TRNFLOW_NOTIFY="http://127.0.0.1:9/first")
    assert alone.returncode == 0, alone.stderr
    before = on_server(api)
    assert before[0].keys() == NAMES

    for folder, ending in ((second, "-second"), (third, None))[: 1 + whole]:
        others = on_server(api)
        beside = deploy(api, folder, TRNFLOW_NOTIFY=f"http://127.0.0.1:9/{folder.name}")
        assert beside.returncode == 0, beside.stderr
        document = json.loads(beside.stdout)
        ending = ending or f"-{document['project']}"
        assert ending.startswith("-second") and document["others"][0] == str(first)
        deployments, automations = on_server(api)
        mine = {name: one for name, one in deployments.items() if name not in others[0]}
        assert mine.keys() == {f"{name}{ending}" for name in NAMES} == set(document["deployments"])
        assert {steps[0][DIRECTORY]["directory"] for _, steps, _ in mine.values()} == {str(folder)}
        assert {name: deployments[name] for name in others[0]} == others[0]
        assert {name: automations[name] for name in others[1]} == others[1]
        (action,) = automations[f"trnflow {ending[1:]}: data changed"]["actions"]
        assert action["deployment_id"] == mine[f"retrain{ending}"][0]
        assert f"trnflow {ending[1:]}: retrained" in automations
    for folder in (first, second, third) if whole else (second,):
        before = on_server(api)
        again = deploy(api, folder)
        assert again.returncode == 0, again.stderr
        deployments, automations = on_server(api)
        assert automations == before[1]
        assert planned(deployments) == planned(before[0])

    check_workers(api, {first: "prepare", second: "prepare-second"})

    before = on_server(api)
    declared = (second / "prefect.yaml").read_text()
    mistakes = (("deployments.py:retrain", "deployments.py:retrian"), ('"0 3 * * *"', '"0 33 * * *"'))
    for right, wrong in mistakes[: 1 + whole]:
        (second / "prefect.yaml").write_text(declared.replace(right, wrong))  # the third of five deployments
        failed = deploy(api, second, "--replace")
        assert f"Prefect refused a deployment of {second}/prefect.yaml: " in failed.stderr
        assert failed.returncode in (1, 2) and "Traceback" not in failed.stderr
        assert on_server(api) == before
    (second / "prefect.yaml").write_text(declared)
    if whole:
        missing = deploy(api, second, "--replace", TRNFLOW_NOTIFY="slack-webhook/none")
        assert "Prefect has no block slack-webhook/none" in missing.stderr
        assert on_server(api) == before

    taken = deploy(api, second, "--replace")
    assert taken.returncode == 0, taken.stderr
    deployments, automations = on_server(api)
    assert {steps[0][DIRECTORY]["directory"] for _, steps, _ in deployments.values()} == {str(second)}
    assert deployments.keys() == NAMES  # no trials
    assert not any("second" in name for name in automations)
    (action,) = automations["trnflow: data changed"]["actions"]
    assert action["deployment_id"] == deployments["retrain"][0]
    assert json.loads(deploy(api, first).stdout)["project"] == "first"
    now = api.get(f"deployments/{theirs['id']}")  # another project's flow, with a deployment of the same name
    assert {name: now[name] for name in ("tags", "job_variables", "updated")} == {
        name: theirs[name] for name in ("tags", "job_variables", "updated")
    }


def check_workers(api: Api, deployments: dict[Path, str]) -> None:
    """Run a deployment of each checkout; the worker of each must take its own run alone."""
    ids = {folder: on_server(api)[0][name][0] for folder, name in deployments.items()}
    wrong = {"recipe": "demo", "overrides": ["no.such=1"]}  # ends at once
    runs = {
        folder: api.post(f"deployments/{id}/create_flow_run", parameters=wrong, enforce_parameter_schema=False)["id"]
        for folder, id in ids.items()
    }
    waiting = dict(runs)
    for folder in reversed(deployments):
        command = [sys.executable, "-m", "trnflow", "worker"]
        with (folder / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                command, cwd=folder, env=api.environ, stdout=log, stderr=log, start_new_session=True
            )
        try:
            wait_for(lambda run=runs[folder]: state(api, run) in ("FAILED", "CRASHED", "COMPLETED"))
        finally:
            os.killpg(worker.pid, signal.SIGTERM)
            worker.wait()
        del waiting[folder]
        assert state(api, runs[folder]) == "FAILED", (folder / "worker.log").read_text()
        assert {state(api, run) for run in waiting.values()} <= {"SCHEDULED"}


def state(api: Api, run: str) -> str:
    return str(api.get(f"flow_runs/{run}")["state"]["type"])
