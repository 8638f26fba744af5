"""Register the deployments of `prefect.yaml` and their automations, and start a worker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import yaml

from trnflow.flows.services.automations import renew
from trnflow.flows.services.checkouts import (
    delete,
    named,
    new_project,
    project_file,
    project_of,
    projects_on,
    replaced_by,
    try_deployments,
)
from trnflow.flows.services.deployed_recipes import PREFECT_FILE, Case, check_recipes, offer_recipes
from trnflow.flows.services.events import FIRST, PROJECT, connected
from trnflow.flows.services.notification import Block, check_block, take_setting
from trnflow.flows.services.prefect_server import asks_for_login, cause_of_failure, last_error, use_server
from trnflow.flows.services.recovery import HEARTBEATS, PATIENT, PROMPT, TAG, our_flows, recovery_automations, tend_runs
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, ProcessFailed
from trnflow.tasks.system.home import temporary_folder
from trnflow.tasks.system.process import STARTER, this_process

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.filters import DeploymentFilter
    from prefect.client.schemas.responses import DeploymentResponse

POOL = "local"
RETRAIN = "retrain"
"""The deployment that an event about changed data runs."""
# Flow runs of a worker at a time. Without a limit, a worker that was away starts all late runs at once; with four, the
# local server answers while a hundred events come in.
AT_ONCE = "4"
WORKER = "from trnflow.flows.services.recovery import prefect_worker; prefect_worker()"
"""The program of a worker's process."""
SERVER_FAILED = "Server error '5"
"""Part of the message of Prefect's client for an HTTP status of 500 or more."""
# how long the server may take to plan a schedule's next run: it looks at new deployments every 5 seconds
SCHEDULE_SECONDS = 90.0


class Deployed(NamedTuple):
    """What `deploy` registered.

    notified: `TYPE/NAME` of the block that notifies, or None; project: the checkout's name on the server; others: the folders of
    other checkouts with deployments there; login: whether the server asks for one.
    """

    names: list[str]
    automations: list[str]
    notified: str | None
    project: str
    others: list[str]
    login: bool


def deploy(home: Path, folder: Path, seconds: float = SCHEDULE_SECONDS, *, replace: bool = False) -> Deployed:
    """Register the deployments of `folder`/prefect.yaml and their automations, and wait for the schedules' first runs.

    The local server is started if no other is configured. replace: delete other checkouts' deployments and automations, and
    become the server's first project.

    Raises:
        ConfigError: No prefect.yaml, a recipe or block that can't be read, or no server.
        ProcessFailed: Prefect refused a deployment, its server failed, or a schedule has no run after `seconds`.
    """
    document = _declared(folder / PREFECT_FILE)
    recipes = check_recipes(document, folder / PREFECT_FILE)
    notify = take_setting()
    url = use_server(home)  # before Prefect is imported, below
    project, others = _prepare_server(home, folder, document, notify, replace=replace)
    names = [named(str(deployment["name"]), project) for deployment in document["deployments"]]
    with project_file(folder / PREFECT_FILE, document, project, POOL) as file:
        _register(home, folder, file)
    automations, block = _complete(names, recipes, notify, project)
    deadline = time.monotonic() + seconds
    with connected() as client:
        while waiting := _unscheduled(client, names):
            if time.monotonic() > deadline:
                raise _never_scheduled(home, waiting, seconds)
            time.sleep(1.0)
    return Deployed(sorted(names), automations, str(block) if block else None, project, others, asks_for_login(url))


def start_worker(home: Path, report: Callable[[], object]) -> NoReturn:
    """Start what ends lost flow runs, then replace this process by a Prefect worker for the deployments of the checkout in
    the working directory. Raises ConfigError without a server.

    report: reports the retrains that crashed too often.
    """
    use_server(home)  # before Prefect is imported, below
    enter_project(Path.cwd())
    tend_runs()
    report()
    environ = PATIENT | PROMPT | os.environ | HEARTBEATS
    if folder := temporary_folder():  # Prefect keeps a folder for each flow run; a killed worker removes none
        environ |= {"TMPDIR": str(folder), STARTER: this_process().tag}
    words = ["worker", "start", "--pool", named(POOL, os.environ[PROJECT]), "--type", "process", "--limit", AT_ONCE]
    os.execve(sys.executable, [sys.executable, "-P", "-c", WORKER, *words], environ)


def enter_project(folder: Path) -> None:
    """Set the variable of this process and its children that names a checkout's project, unless it is set. Raises ConfigError."""
    if PROJECT not in os.environ:
        with connected() as client:
            os.environ[PROJECT] = project_of(client, folder) or FIRST


def _declared(file: Path) -> Meta:
    """Return the content of a prefect.yaml. Raises ConfigError if there is none."""
    try:
        document: Meta = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{file.parent} has no {PREFECT_FILE}",
            'run it in the project\'s folder; `trnflow new DATA --deploy "0 3 * * *"` writes one beside a recipe',
        ) from error
    return document


def check_cron(text: str) -> None:
    """Raise ConfigError unless a text is a schedule that Prefect takes."""
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        CronSchedule(cron=text)
    except ValidationError as error:
        raise ConfigError(
            f"{text!r} is no schedule", 'give minute, hour, day, month and weekday: "0 3 * * *" is each night at 3'
        ) from error


def _complete(
    names: list[str], recipes: dict[Case, str], notify: str | None, project: str
) -> tuple[list[str], Block | None]:
    """Add to the registered deployments what prefect.yaml can't say: the list of recipes, and the automations."""
    with connected() as client:
        deployments = client.read_deployments(flow_filter=our_flows(), deployment_filter=_named(names))
        _mark(client, deployments)
        offer_recipes(client, deployments, recipes)
        retrain = next((each for each in deployments if each.name == named(RETRAIN, project)), None)
        return renew(client, retrain, recipes, notify, recovery_automations(), project, projects_on(client))


def _mark(client: SyncPrefectClient, deployments: list[DeploymentResponse]) -> None:
    """Give each deployment the tag and the heartbeats without which `recovery.py` leaves its runs alone."""
    from prefect.client.schemas.actions import DeploymentUpdate

    for deployment in deployments:
        variables = dict(deployment.job_variables or {})
        environ = dict(variables.get("env") or {})
        if TAG in deployment.tags and environ | HEARTBEATS == environ:
            continue
        changed = {"tags": sorted({*deployment.tags, TAG}), "job_variables": {**variables, "env": environ | HEARTBEATS}}
        client.update_deployment(deployment.id, DeploymentUpdate.model_validate(changed))


def _prepare_server(
    home: Path, folder: Path, document: Meta, notify: str | None, *, replace: bool
) -> tuple[str, list[str]]:
    """Prepare project and work pool, and with `replace` delete what others deployed; return project, others' folders."""
    with connected() as client:
        check_block(client, notify)
        project = FIRST if replace else project_of(client, folder) or new_project(client, folder)
        _make_pool(client, named(POOL, project))
        if replace and (replaced := replaced_by(client, folder)):
            # the old ones go only after Prefect accepted the new ones
            try_deployments(client, document, lambda file: _register(home, folder, file))
            delete(client, replaced)
        return project, sorted(where for name, where in projects_on(client).items() if name != project)


def _make_pool(client: SyncPrefectClient, name: str) -> None:
    """Create a work pool, unless the server has it."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    with suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))


def _register(home: Path, folder: Path, file: Path) -> None:
    """Register all deployments of a prefect.yaml for the checkout `folder`. Raises ProcessFailed if Prefect refuses."""
    command = [sys.executable, "-P", "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if process.returncode:
        printed = process.stderr.strip() or process.stdout.strip() or f"exit code {process.returncode}"
        raise _refused(home, folder / PREFECT_FILE, printed)


def _refused(home: Path, declared: Path, printed: str) -> ProcessFailed:
    """Return the error about deployments that were not registered. printed: by Prefect; its last line says why."""
    message = printed.splitlines()[-1].strip()
    if SERVER_FAILED in message:
        cause, fix = cause_of_failure(home)
        return ProcessFailed(f"Prefect's server failed while it registered {declared}: {cause or message}", fix)
    return ProcessFailed(f"Prefect refused a deployment of {declared}: {message}", f"correct {declared}")


def _never_scheduled(home: Path, waiting: list[str], seconds: float) -> ProcessFailed:
    """Return the error about deployments of which no flow run was planned."""
    cause, fix = cause_of_failure(home)
    if not cause:
        error = last_error(home)
        cause = "Prefect's scheduler " + (f"fails with: {error}" if error else "is off, or fails")
        fix = "install requirements.lock, which Prefect's server works with, then `trnflow down` and deploy again"
    return ProcessFailed(
        f"the schedule of {', '.join(waiting)} has no scheduled run after {seconds:.0f} s: {cause}", fix
    )


def _unscheduled(client: SyncPrefectClient, names: list[str]) -> list[str]:
    """Return those of `names` with an active schedule but no scheduled flow run yet."""
    from prefect.client.schemas import filters

    scheduled = filters.FlowRunFilter.model_validate({"state": {"type": {"any_": ["SCHEDULED"]}}})
    unscheduled = []
    for deployment in client.read_deployments(deployment_filter=_named(names)):
        if deployment.paused or not any(schedule.active for schedule in deployment.schedules):
            continue
        own = filters.DeploymentFilter(id=filters.DeploymentFilterId(any_=[deployment.id]))
        if not client.read_flow_runs(deployment_filter=own, flow_run_filter=scheduled, limit=1):
            unscheduled.append(deployment.name)
    return unscheduled


def _named(names: list[str]) -> DeploymentFilter:
    from prefect.client.schemas import filters

    return filters.DeploymentFilter(name=filters.DeploymentFilterName(any_=names))
