"""Register the deployments of `prefect.yaml` with the Prefect server, and start a worker that runs them.

`deploy` waits until the server has planned the next flow run of each active schedule: when the scheduler fails, only
the server's log reports it, while Prefect's page shows the deployment as ready.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import yaml

from flows.services.prefect_server import ensure_server, last_error
from tasks.errors import ConfigError, ProcessFailed

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

POOL = "local"
FILE = "prefect.yaml"
SCHEDULE_SECONDS = 90.0
"""How long the server may take to plan a schedule's next run. Its scheduler looks at new deployments every 5 seconds."""


def deploy(home: Path, folder: Path, seconds: float = SCHEDULE_SECONDS) -> list[str]:
    """Register all deployments of `folder`/prefect.yaml and return their names.

    Creates the work pool where the server has none.

    Raises:
        ConfigError: `folder` has no prefect.yaml.
        ProcessFailed: Prefect refused a deployment, or an active schedule has no scheduled run after `seconds`.
    """
    names = _declared(folder / FILE)
    os.environ["PREFECT_API_URL"] = ensure_server(home)  # read when Prefect is imported, below
    _create_pool()
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise ProcessFailed(
            f"Prefect refused a deployment of {folder / FILE}: {_last_line(done)}", f"correct {folder / FILE}"
        )
    _wait_scheduled(home, names, seconds)
    return sorted(names)


def start_worker(home: Path) -> NoReturn:
    """Replace this process by a Prefect worker that runs the deployments of the pool `local`, until it is interrupted."""
    environ = os.environ | {"PREFECT_API_URL": ensure_server(home)}
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
    os.execve(sys.executable, command, environ)


def _declared(file: Path) -> list[str]:
    """Return the names of the deployments in a prefect.yaml."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{file.parent} has no {FILE}", "run it in the project's folder") from error
    return [str(deployment["name"]) for deployment in document["deployments"]]


def _create_pool() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        try:
            client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))
        except ObjectAlreadyExists:
            return


def _wait_scheduled(home: Path, names: list[str], seconds: float) -> None:
    from prefect.client.orchestration import get_client

    deadline = time.monotonic() + seconds
    with get_client(sync_client=True) as client:
        while waiting := _unscheduled(client, names):
            if time.monotonic() > deadline:
                error = last_error(home)
                raise ProcessFailed(
                    f"the schedule of {', '.join(waiting)} has no scheduled run after {seconds:.0f} s: Prefect's scheduler "
                    + (f"fails with: {error}" if error else "is off, or fails"),
                    "install requirements.lock, which Prefect's server works with, then `trnflow down` and deploy again",
                )
            time.sleep(1.0)


def _unscheduled(client: SyncPrefectClient, names: list[str]) -> list[str]:
    """Return those of `names` whose deployment has an active schedule but no scheduled flow run yet."""
    from prefect.client.schemas import filters

    wanted = filters.DeploymentFilter(name=filters.DeploymentFilterName(any_=names))
    scheduled = filters.FlowRunFilter.model_validate({"state": {"type": {"any_": ["SCHEDULED"]}}})
    found = []
    for deployment in client.read_deployments(deployment_filter=wanted):
        if deployment.paused or not any(schedule.active for schedule in deployment.schedules):
            continue
        own = filters.DeploymentFilter(id=filters.DeploymentFilterId(any_=[deployment.id]))
        if not client.read_flow_runs(deployment_filter=own, flow_run_filter=scheduled, limit=1):
            found.append(deployment.name)
    return found


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1].strip() if lines else f"exit code {done.returncode}"
