"""A run whose worker and process are killed: Prefect's server finds out, schedules it again, and training is resumed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.flows.prefect_api import PROJECT, Api
from tests.helpers import waiting
from tests.helpers.ledgers import entries
from trnflow.flows.services.recovery import LEFT_SECONDS, TIMES, _is_left, _is_unfinished, recovery_automations

SLOW = ["train.max_steps=300", "train.checkpoint_every=20", "train.learning_rate=1e-4"]


@pytest.fixture(scope="module")
def deployed(own_api: Api, tmp_path_factory: pytest.TempPathFactory) -> Api:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    own_api.environ["RECIPE"] = str(folder / "tiny.yaml")
    own_api.prefect("work-pool", "create", "local", "--type", "process", "--overwrite")
    for name in ("finetune", "retrain"):
        own_api.prefect("deploy", "--name", name)
    return own_api


@contextlib.contextmanager
def worker(api: Api) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "trnflow", "worker"]
    process = subprocess.Popen(command, cwd=PROJECT, env=api.environ, start_new_session=True)
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(30)


wait_for = partial(waiting.wait_for, seconds=400.0)


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def state(api: Api, run: str) -> str:
    return str(api.get(f"flow_runs/{run}")["state_name"])


def states(api: Api, run: str) -> list[str]:
    """The names of the states that a flow run has had, in their order."""
    return [found["name"] for found in api.get(f"flow_run_states/?flow_run_id={run}")]


def start(api: Api, flow: str, **parameters: Any) -> str:
    deployment = api.get(f"deployments/name/{flow}/{flow}")["id"]
    given = {"recipe": api.environ["RECIPE"], **parameters}
    return str(api.post(f"deployments/{deployment}/create_flow_run", parameters=given)["id"])


def automate(api: Api, **seconds: float) -> dict[str, str]:
    """Create the automations, with other times than `deploy` does. Returns {name: id}."""
    made = [
        api.post("automations/", **automation.model_dump(mode="json")) for automation in recovery_automations(**seconds)
    ]
    return {automation["name"]: automation["id"] for automation in made}


def events(api: Api, name: str, run: str) -> list[Any]:
    wanted = {"event": {"name": [name]}, "resource": {"id": [f"prefect.flow-run.{run}"]}}
    return list(api.post("events/filter", filter=wanted)["events"])


def event(name: str, flow: str, *, deployed: bool = True, tag: str = "trnflow", **labels: str) -> Any:
    """An event about a flow run with a tag, as Prefect's server gets it."""
    from prefect.server.events.schemas.events import ReceivedEvent

    related = [
        {"prefect.resource.id": "prefect.flow.1", "prefect.resource.role": "flow", "prefect.resource.name": flow}
    ]
    related.append({"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"})
    if deployed:
        related.append({"prefect.resource.id": "prefect.deployment.2", "prefect.resource.role": "deployment"})
    return ReceivedEvent.model_validate(
        {
            "id": uuid.uuid4(), "occurred": datetime.now(UTC), "event": name, "related": related,
            "resource": {"prefect.resource.id": "prefect.flow-run.3", **labels},
        }
    )  # fmt: skip


@pytest.mark.slow  # imports the server
def test_which_runs_the_automations_are_about() -> None:
    from prefect.server.events.schemas.automations import Automation

    made = [Automation.model_validate(one.model_dump(mode="json")) for one in recovery_automations()]
    silent, pending, cancelling, again, unbegun = (one.trigger for one in made)
    for flow in ("finetune", "retrain", "watch", "sweep"):
        assert silent.covers(event("prefect.flow-run.heartbeat", flow, deployed=False))
    assert silent.starts_after("trnflow.run.is-running") and not silent.starts_after("prefect.flow-run.Running")
    assert silent.expects("prefect.flow-run.Promoted") and pending.expects("prefect.flow-run.Running")
    assert not cancelling.expects("prefect.flow-run.heartbeat")
    assert not any(one.covers(event("prefect.flow-run.heartbeat", "other")) for one in (silent, pending, cancelling))
    of_others = event("prefect.flow-run.heartbeat", "retrain", tag="theirs")  # a flow of this name on a shared server
    assert not any(one.covers(of_others) for one in (silent, pending, cancelling))

    def is_scheduled(count: int, flow: str = "retrain", *, deployed: bool = True) -> bool:
        crash = event("prefect.flow-run.Crashed", flow, deployed=deployed, **{"prefect.run-count": str(count)})
        return again.covers(crash) or unbegun.covers(crash)

    assert [is_scheduled(count) for count in range(6)] == [True] * 4 + [False] * 2
    assert again.for_each == unbegun.for_each == {"prefect.resource.id", "prefect.run-count"}
    assert again.within == unbegun.within == timedelta(days=1)  # once a day for a run that does not begin
    assert not is_scheduled(1, "watch") and not is_scheduled(1, "other") and not is_scheduled(1, deployed=False)


@pytest.mark.slow  # imports Prefect
def test_a_running_run_of_the_command_line_is_looked_after_too() -> None:
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import Completed, Running

    flow = uuid.uuid4()
    assert _is_unfinished(FlowRun(flow_id=flow, state=Running()))
    assert _is_unfinished(FlowRun(flow_id=flow, deployment_id=uuid.uuid4(), state=Running()))
    assert not _is_unfinished(FlowRun(flow_id=flow, state=Completed()))


def test_a_lost_run_is_started_three_times_more() -> None:
    """By the automations, and by `tend_runs` where they missed it."""
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import Crashed

    ids = {"flow_id": uuid.uuid4(), "deployment_id": uuid.uuid4()}
    crashed = Crashed(timestamp=datetime.now(UTC) - timedelta(seconds=2 * LEFT_SECONDS))

    def is_left(count: int) -> bool:
        return _is_left(FlowRun(**ids, state=crashed, run_count=count), "finetune", LEFT_SECONDS, TIMES)

    assert [count for count in range(7) if is_left(count)] == [1, 2, 3]
    assert not _is_left(FlowRun(**ids, state=Crashed(), run_count=1), "finetune", LEFT_SECONDS, TIMES)
    again = recovery_automations()[3]
    assert again.trigger.model_dump()["match"]["prefect.run-count"] == ["1", "2", "3"]


def script(api: Api, text: str, *arguments: object) -> str:
    """What a script prints to a process that uses the server."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(command, cwd=PROJECT, env=api.environ, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr


TEND = "import sys; from trnflow.flows.services.recovery import tend_runs; print(tend_runs(left=float(sys.argv[1])))"


@pytest.mark.slow
def test_a_crashed_run_that_the_automations_missed_is_scheduled_three_times(deployed: Api) -> None:
    run = start(deployed, "finetune")

    def tend(left: float) -> str:
        """The number of runs that needed it, and the state of the run afterwards."""
        for kind in ("RUNNING", "CRASHED"):
            deployed.post(f"flow_runs/{run}/set_state", state={"type": kind}, force=True)
        return f"{script(deployed, TEND, left)} {state(deployed, run)}"

    assert tend(60) == "0 Crashed"  # the automation may still do it
    assert tend(0) == "1 Scheduled"
    deployed.post(f"flow_runs/{run}/set_state", state={"type": "CRASHED"}, force=True)
    # it did not begin: its checkout may be broken
    assert (script(deployed, TEND, 0), state(deployed, run)) == ("0", "Crashed")
    assert [tend(0), tend(0)] == ["1 Scheduled", "0 Crashed"]
    deployed.delete(f"flow_runs/{run}")


UNBEGUN = "import sys; from trnflow.flows.services.recovery import end_unbegun_runs; print(end_unbegun_runs(float(sys.argv[1])))"


@pytest.mark.slow
def test_a_run_that_a_worker_took_and_left_is_ended(deployed: Api) -> None:
    run = start(deployed, "retrain")
    deployed.post(f"flow_runs/{run}/set_state", state={"type": "PENDING", "name": "Submitting"}, force=True)

    def ended(pending: float) -> str:
        """The number of runs that were ended, and the state of the run afterwards."""
        return f"{script(deployed, UNBEGUN, pending)} {state(deployed, run)}"

    assert [ended(60), ended(0), ended(0)] == ["0 Submitting", "1 Crashed", "0 Crashed"]
    assert "did not begin within 0 s" in deployed.get(f"flow_runs/{run}")["state"]["message"]
    deployed.delete(f"flow_runs/{run}")


REPORT = "from trnflow.flows.retraining.crashed import report_crashed; print(report_crashed())"


@pytest.mark.slow
def test_a_retrain_that_crashed_more_than_three_times_is_reported_once(deployed: Api) -> None:
    run = start(deployed, "retrain")

    def reported(times: int) -> str:
        for _ in range(times):
            for kind in ("RUNNING", "CRASHED"):
                deployed.post(f"flow_runs/{run}/set_state", state={"type": kind}, force=True)
        return script(deployed, REPORT)

    def told() -> list[Any]:
        wanted = {"event": {"name": ["trnflow.retrain.failed"]}, "resource": {"id": ["trnflow.recipe.tiny"]}}
        return list(deployed.post("events/filter", filter=wanted)["events"])

    assert [reported(3), reported(1)] == ["0", "1"]
    wait_for(told, seconds=60)  # the server writes events in batches
    assert reported(0) == "0"
    (event,) = told()
    assert "the retrain crashed 4 times" in event["payload"]["why"]
    assert event["payload"]["error"]["type"] == "ProcessFailed"
    assert {one["prefect.resource.id"] for one in event["related"]} == {f"prefect.flow-run.{run}"}
    newest = entries(deployed.home / "store", "tiny")[0]
    assert (newest["outcome"], newest["stands"]["failures"]) == ("failed", 1)
    deployed.delete(f"flow_runs/{run}")


BACK = """
import asyncio, uuid
from types import SimpleNamespace
import anyio
from prefect.workers.process import ProcessWorker
from trnflow.flows.services.recovery import leave_counted_runs

async def main():
    worker = ProcessWorker(work_pool_name="local", limit=4)
    worker._limiter = anyio.CapacityLimiter(4)
    run = SimpleNamespace(id=uuid.uuid4())
    worker.limiter.acquire_on_behalf_of_nowait(run.id)
    print(await worker._submit_scheduled_flow_runs([SimpleNamespace(flow_run=run)]))

leave_counted_runs()
asyncio.run(main())
"""


@pytest.mark.slow  # imports Prefect
def test_a_run_that_comes_back_before_its_last_process_is_cleared_away_does_not_end_the_worker() -> None:
    done = subprocess.run([sys.executable, "-c", BACK], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_a_worker_of_a_script_ends_at_the_first_sigterm(deployed: Api, tmp_path: Path) -> None:
    """A shell without job control starts `trnflow worker &` with SIGINT ignored."""
    command = ["sh", "-c", 'trap "" INT; exec "$0" -m trnflow worker', sys.executable]
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=PROJECT, env=deployed.environ, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_for(lambda: "started!" in log.read_text())
        process.terminate()
        process.wait(60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kill_and_resume(api: Api, run: str, ready: Callable[[], object]) -> None:
    """Kill worker and flow process of a run once it is ready, let its heartbeats' end be noticed, and wait until it completed.

    The window is shorter than the time between two heartbeats, so the automation exists only while no run lives."""
    with worker(api) as first:
        wait_for(ready)
        assert state(api, run) == "Running"
        flows = children(first.pid)
        for process in (first.pid, *flows):
            os.kill(process, signal.SIGKILL)
        first.wait(30)
    assert flows and state(api, run) == "Running"  # nobody is left who could say otherwise
    api.prefect("work-pool", "pause", "local")
    made = automate(api, silent=10.0)
    with worker(api):
        wait_for(lambda: state(api, run) in ("Scheduled", "Late"))
        api.delete(f"automations/{made['trnflow: silent runs are crashed']}")
        api.prefect("work-pool", "resume", "local")
        wait_for(lambda: state(api, run) == "Completed")


@pytest.mark.slow
def test_a_run_whose_worker_and_process_are_killed_is_resumed(deployed: Api) -> None:
    run = start(deployed, "finetune", overrides=SLOW, until="train")

    def ready() -> bool:
        saved = list((deployed.home / "store/partial").glob("*/step-*/COMMIT"))
        return bool(saved and events(deployed, "prefect.flow-run.heartbeat", run))

    kill_and_resume(deployed, run, ready)
    waits = ["Scheduled", "Late", "Pending", "Submitting", "InfrastructurePending"]
    passed = [name for name in states(deployed, run) if name not in waits]
    assert passed == ["Running", "Crashed", "Running", "Completed"]
    # not Prefect's logs of the run: those of its last two seconds may be missing there
    assert any("resumes at step" in log.read_text() for log in (deployed.home / "runs").rglob("events.jsonl"))


@pytest.mark.slow
@pytest.mark.nightly
def test_of_late_runs_one_trains(deployed: Api) -> None:
    runs = [start(deployed, "retrain") for _ in range(3)]
    with worker(deployed):
        wait_for(lambda: all(state(deployed, run) in ("Promoted", "Unchanged") for run in runs), seconds=900)
    assert sorted(state(deployed, run) for run in runs) == ["Promoted", "Unchanged", "Unchanged"]
