"""Automations and notifications for real: a server, a webhook's receiver, a worker, a recipe that is retrained."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.flows.prefect_api import Api, own_server
from tests.helpers.serving import QuietHandler, serving
from tests.helpers.waiting import wait_for
from trnflow.flows.services.recovery import recovery_automations

pytestmark = pytest.mark.slow  # one costly fixture for the whole file

TOKEN = "tokn-8x9QzW-0451"
DEPLOYMENTS = """
name: mine
deployments:
  - name: retrain
    entrypoint: trnflow.flows.deployments.retrain
    parameters: {{recipe: tiny.yaml, overrides: []}}
    work_pool: {{name: local}}
    schedules: [{schedule}]
"""
NIGHTLY = '{cron: "0 3 * * *", timezone: UTC}'
OFTEN = "{interval: 8}"
KEPT = {
    "recipe": "tiny", "run": "20261120T142233Z-3f9a1c", "changed": True, "promoted": False, "why": "not better",
    "metrics": {"name": "f1_weighted", "champion": 0.91234, "challenger": 0.9, "difference": -0.01234,
                "interval": [-0.05, 0.02], "margin": 0.01},
    "checks": [{"what": "rows", "limit": 0.1, "value": 0.25, "result": "warned", "why": None},
               {"what": "leakage", "limit": 0.01, "value": None, "result": "not applied", "why": "no champion"}],
    "report": "trnflow report 20261120T142233Z-3f9a1c",
    "notes": ["this machine: trains on the processor", "0.455 on 600 rows of test; the simple baseline has 0.52",
              "the check rows found 0.25, above its limit 0.1"],
}  # fmt: skip


class Receiver(ThreadingHTTPServer):
    """A webhook: keeps the path and the body of each request."""

    def __init__(self) -> None:
        self.received: list[tuple[str, Any]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def messages(self, event: str) -> list[Any]:
        return [body for _, body in self.received if body["event"] == event]


class Handler(QuietHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.headers["Content-Type"] == "application/json"
        self.server.received.append((self.path, json.loads(self.body())))
        self.answer(200)


class Project:
    """A folder with a recipe and a prefect.yaml, its home, and the server in that home."""

    def __init__(self, folder: Path, api: Api, receiver: Receiver) -> None:
        self.folder, self.api, self.receiver = folder, api, receiver
        self.said = ""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.receiver.server_port}/hooks/{TOKEN}"

    def deploy(self, schedule: str, **environ: str) -> Any:
        (self.folder / "prefect.yaml").write_text(DEPLOYMENTS.format(schedule=schedule))
        return json.loads(self.run("-m", "trnflow", "deploy", "--json", **environ))

    def run(self, *arguments: str, code: int = 0, **environ: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=self.api.environ | environ,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        self.said += done.stdout + done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def automations(self) -> dict[str, Any]:
        return {one["name"]: one for one in self.api.post("automations/filter")}

    def emit(self, event: str, payload: Any) -> None:
        resource = {"prefect.resource.id": "trnflow.recipe.tiny", "prefect.resource.name": "tiny"}
        now = datetime.now(UTC).isoformat()
        document = {"occurred": now, "event": event, "resource": resource, "payload": payload, "id": str(uuid.uuid4())}
        self.api.post_list("events", [document])

    def deployment(self) -> Any:
        return self.api.get("deployments/name/retrain/retrain")

    def events(self, name: str) -> list[Any]:
        return self.api.post("events/filter", filter={"event": {"name": [name]}})["events"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("project")
    write_tiny(folder)
    home = folder / ".trnflow"
    with serving(Receiver()) as receiver, own_server(home) as url:
        yield Project(folder, Api(home, url), receiver)


def test_deploy_makes_automations_and_says_when_a_scheduled_retrain_did_not_run(project: Project) -> None:
    said = project.deploy(OFTEN, TRNFLOW_NOTIFY=project.address)
    names = ["trnflow: data changed", "trnflow: retrained", "trnflow: tiny did not run"]
    assert {*names} <= {*said["automations"]}
    assert said["notify"] == "webhook/trnflow"
    assert {*names} <= project.automations().keys()
    message = wait_for(lambda: project.receiver.messages("trnflow.retrain.missing"))[0]  # no worker runs
    assert message["recipe"] == "tiny"
    assert message["text"].startswith(
        "tiny did not run: no retrain of it ended within 12 seconds. `trnflow status` shows one"
    )


def test_a_second_deploy_renews_what_changed_and_keeps_the_rest(project: Project) -> None:
    before = project.automations()
    said = project.deploy(NIGHTLY)  # without TRNFLOW_NOTIFY
    assert said["notify"] == "webhook/trnflow"
    after = project.automations()
    assert after.keys() == before.keys()
    assert after["trnflow: tiny did not run"]["id"] == before["trnflow: tiny did not run"]["id"]
    assert after["trnflow: data changed"] == before["trnflow: data changed"]
    assert after["trnflow: retrained"] == before["trnflow: retrained"]
    lost = [one.name for one in recovery_automations()]
    assert lost and all(after[name] == before[name] for name in lost)
    waits = {
        when: found["trnflow: tiny did not run"]["trigger"]["within"] for when, found in (("0", before), ("1", after))
    }
    assert waits == {"0": 12.0, "1": 36 * 3600.0}


def test_a_message_has_the_figures_and_the_report(project: Project) -> None:
    project.emit("trnflow.retrain.unchanged", KEPT)  # is not notified
    project.emit("trnflow.retrain.kept", KEPT)
    message = wait_for(lambda: project.receiver.messages("trnflow.retrain.kept"))[0]
    assert message["retrain"] == KEPT
    assert message["text"].splitlines() == [
        "tiny kept: not better",
        "f1_weighted 0.9, the champion's 0.9123: difference -0.01234 [-0.05, +0.02], margin 0.01",
        "warning of the check rows: 0.25, limit 0.1",
        "0.455 on 600 rows of test; the simple baseline has 0.52",
        "report: trnflow report 20261120T142233Z-3f9a1c",
    ]
    assert {path for path, _ in project.receiver.received} == {f"/hooks/{TOKEN}"}


def test_the_form_offers_the_recipes_and_others_are_refused(project: Project) -> None:
    deployment = project.deployment()
    offered = deployment["parameter_openapi_schema"]["properties"]["recipe"]["enum"]
    assert {"demo", "tiny.yaml"} <= {*offered}
    with pytest.raises(urllib.error.HTTPError) as refused:
        project.api.post(f"deployments/{deployment['id']}/create_flow_run", parameters={"recipe": "dmo"})
    assert refused.value.code == 409
    assert "'dmo' is not one of" in refused.value.read().decode()


def test_changed_data_are_retrained_and_told_by_a_worker(project: Project) -> None:
    """The plan, the progress, the result and the name stand on the page of the run. A run that changes nothing has none."""
    api, deployment = project.api, project.deployment()
    for run in api.post("flow_runs/filter"):  # those of the test's short schedule
        api.delete(f"flow_runs/{run['id']}")
    project.emit("trnflow.data.changed", {"recipe": "tiny.yaml", "overrides": ["train.max_steps=2"]})
    run = wait_for(lambda: [run for run in api.post("flow_runs/filter") if not run["auto_scheduled"]])[0]
    create = f"deployments/{deployment['id']}/create_flow_run"
    mistaken = api.post(create, parameters={"recipe": "tiny.yaml", "overrides": ["train.learing_rate=1"]})["id"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "trnflow", "worker"], cwd=project.folder, env=api.environ, start_new_session=True
    )
    try:
        done = ended(api, run["id"])
        again = ended(api, api.post(create, parameters=run["parameters"])["id"])
    finally:
        os.killpg(worker.pid, signal.SIGTERM)
        worker.wait(60)
    assert (done["name"], done["state_name"]) == ("tiny: no model was judged in this store yet", "Promoted")
    assert run["parameters"] == {"recipe": "tiny.yaml", "overrides": ["train.max_steps=2"]}
    shown = artifacts(api, run["id"])
    assert {"plan", "progress", "run", "retrain"} <= shown.keys()
    plan = json.loads(shown["plan"]["data"])
    assert [row["stage"] for row in plan][:2] == ["load_data", "format_prompts"]
    assert plan[0]["why"].startswith("inputs.frozen: nothing -> sha256:")
    assert shown["progress"]["data"] == 100.0
    assert "`trnflow report 2" in shown["retrain"]["data"]
    assert "file://" not in json.dumps(shown)
    assert (again["name"], again["state_name"]) == ("tiny: unchanged", "Unchanged")
    assert artifacts(api, again["id"]) == {}
    failed = ended(api, mistaken)
    assert failed["state_type"] == "FAILED"
    assert "train.learing_rate is not a setting" in failed["state"]["message"]
    messages = wait_for(lambda: project.receiver.messages("trnflow.retrain.promoted"))
    assert [message["retrain"]["promoted"] for message in messages] == [True]
    assert f"{api.url.removesuffix('/api')}/runs/flow-run/{run['id']}" in messages[0]["text"]
    wait_for(lambda: project.receiver.messages("trnflow.retrain.failed"))
    assert not project.receiver.messages("trnflow.retrain.unchanged")


def test_the_token_of_an_address_that_is_down_is_nowhere(project: Project) -> None:
    """Last but one: no receiver is left."""
    project.receiver.shutdown()
    project.receiver.server_close()
    project.emit("trnflow.retrain.stopped", KEPT | {"stopped": True})
    (failed, *_) = wait_for(lambda: project.events("prefect.automation.action.failed"))
    assert failed["payload"]["reason"].startswith("Webhook call failed: ConnectError")
    events = json.dumps(project.api.post("events/filter", limit=50, filter={}))
    blocks = json.dumps(project.api.post("block_documents/filter"))
    assert '"webhook"' in blocks
    files = {file: file.read_bytes() for file in project.api.home.rglob("*") if file.is_file()}
    assert any(file.name == "prefect.db" for file in files)
    assert [file for file, data in files.items() if TOKEN.encode() in data] == []
    assert TOKEN not in events + blocks + project.said


def test_off_ends_the_notifications_and_forgets_the_address(project: Project) -> None:
    assert project.deploy(NIGHTLY, TRNFLOW_NOTIFY="off")["notify"] is None
    assert not {"trnflow: retrained", "trnflow: tiny did not run"} & project.automations().keys()
    assert "trnflow: data changed" in project.automations()
    assert "trnflow" not in {block["name"] for block in project.api.post("block_documents/filter")}


def ended(api: Api, run: str) -> Any:
    final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    wait_for(lambda: api.get(f"flow_runs/{run}")["state_type"] in final, 600)
    return api.get(f"flow_runs/{run}")


def artifacts(api: Api, run: str) -> dict[str, Any]:
    return {one["key"]: one for one in api.post("artifacts/filter", flow_runs={"id": {"any_": [run]}})}
