"""Keep two checkouts from overwriting one another's deployments on one Prefect server.

The first is the *project* `trnflow`, whose deployments have the names of its prefect.yaml. Those of another one end with the
project's name, and so does its work pool. A *rehearsal* registers the new deployments under other names first.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from trnflow.flows.services.events import FIRST, PROJECT
from trnflow.flows.services.recovery import TAG
from trnflow.tasks.artifact import Meta

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

DIRECTORY = "prefect.deployments.steps.set_working_directory"
"""Prefect's step that sets the working directory of a deployment's runs."""


TRIAL = " (trial of deploy --replace)"
"""Ends the name of a rehearsed deployment."""


def project_of(client: SyncPrefectClient, folder: Path) -> str | None:
    """Return the project under which a checkout's deployments are on the server; None if they are not."""
    own = [deployment for deployment, where in _ours(client) if where == folder.resolve()]
    return project_in(own[0]) if own else None


def project_in(deployment: DeploymentResponse) -> str:
    return str(((deployment.job_variables or {}).get("env") or {}).get(PROJECT, FIRST))


def new_project(client: SyncPrefectClient, folder: Path) -> str:
    """Return the project for a checkout that has no deployments on the server: `trnflow` if no other has, else its folder's
    name, with digits where another project has that name."""
    taken = projects_on(client)
    if not taken:
        return FIRST
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.resolve().name)
    # the first project's name is never given again, since its checkout may be away for a while
    digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
    return f"{name}-{digest}" if name in {*taken, FIRST} else name


def named(name: str, project: str) -> str:
    """Return the name of a project's deployment or work pool. name: as prefect.yaml has it."""
    return name if project == FIRST else f"{name}-{project}"


@contextmanager
def project_file(file: Path, document: Meta, project: str, pool: str) -> Iterator[Path]:
    """Yield a prefect.yaml that names a project's deployments and work pool; `file` itself of the first project.

    document: the content of `file`; pool: the work pool that is renamed.
    """
    if project == FIRST:
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="trnflow-deploy-") as folder:
        written = Path(folder) / file.name
        deployments = [_of_project(declared, project, pool) for declared in document["deployments"]]
        written.write_text(yaml.safe_dump({**document, "deployments": deployments}), encoding="utf-8")
        yield written


def _of_project(declared: Meta, project: str, pool: str) -> Meta:
    """Return a declared deployment under a project's names."""
    place = dict(declared.get("work_pool") or {})
    if place.get("name") == pool:
        place["name"] = named(pool, project)
    variables = dict(place.get("job_variables") or {})
    variables["env"] = {**(variables.get("env") or {}), PROJECT: project}
    work_pool = {**place, "job_variables": variables}
    return {**declared, "name": named(str(declared["name"]), project), "work_pool": work_pool}


def projects_on(client: SyncPrefectClient) -> dict[str, str]:
    """Return {project: a folder of it} of our deployments."""
    return {project_in(deployment): str(where) for deployment, where in _ours(client)}


def replaced_by(client: SyncPrefectClient, folder: Path) -> list[DeploymentResponse]:
    """Return our deployments that are not of this checkout as the server's first project."""
    first = (FIRST, folder.resolve())
    return [deployment for deployment, where in _ours(client) if (project_in(deployment), where) != first]


def try_deployments(client: SyncPrefectClient, document: Meta, register: Callable[[Path], None]) -> None:
    """Register a prefect.yaml's deployments under other names, without active schedules, then delete them. Raises as
    `register`.

    document: the content of the prefect.yaml; register: registers all deployments of a file.
    """
    with tempfile.TemporaryDirectory(prefix="trnflow-deploy-") as folder:
        file = Path(folder) / "prefect.yaml"
        file.write_text(yaml.safe_dump(_as_trials(document)), encoding="utf-8")
        try:
            register(file)
        finally:
            # those of earlier commands too
            delete(client, (deployment for deployment in client.read_deployments() if deployment.name.endswith(TRIAL)))


def delete(client: SyncPrefectClient, deployments: Iterable[DeploymentResponse]) -> None:
    """Delete deployments, with their scheduled runs."""
    for deployment in deployments:
        client.delete_deployment(deployment.id)


def checkout_of(deployment: DeploymentResponse) -> str | None:
    """Return the working directory of a deployment's runs, or None."""
    steps = [step[DIRECTORY]["directory"] for step in deployment.pull_steps or [] if DIRECTORY in step]
    return steps[0] if steps and Path(steps[0]).is_absolute() else None


def _ours(client: SyncPrefectClient) -> list[tuple[DeploymentResponse, Path]]:
    """Return (deployment, folder) of those with the tag `trnflow` that name a folder."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    places = [(deployment, checkout_of(deployment)) for deployment in client.read_deployments(deployment_filter=tagged)]
    return [(deployment, Path(where).resolve()) for deployment, where in places if where is not None]


def _as_trials(document: Meta) -> Meta:
    """Return the content of a prefect.yaml under other names, without active schedules."""

    def inactive(schedule: Meta | None) -> Meta | None:
        return {**schedule, "active": False} if schedule else schedule

    trials = []
    for declared in document["deployments"]:
        trial = {**declared, "name": f"{declared['name']}{TRIAL}"}
        if "schedule" in trial:
            trial["schedule"] = inactive(trial["schedule"])
        if trial.get("schedules"):
            trial["schedules"] = [inactive(schedule) for schedule in trial["schedules"]]
        trials.append(trial)
    return {**document, "deployments": trials}
