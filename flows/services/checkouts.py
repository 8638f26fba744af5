"""Keep two checkouts from overwriting one another's deployments on one Prefect server.

Their deployments have the same names; Prefect stores each one's folder, which tells the checkouts apart. A *rehearsal*
registers the new deployments under other names first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from trnflow.flows.services.recovery import TAG
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.redaction import hide_secrets

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

DIRECTORY = "prefect.deployments.steps.set_working_directory"
"""Prefect's step that sets the working directory of a deployment's runs."""


TRIAL = " (trial of deploy --replace)"
"""Ends the name of a rehearsed deployment."""


def others_on(client: SyncPrefectClient, folder: Path, *, replace: bool) -> list[DeploymentResponse]:
    """Return our deployments of other checkouts. Raises ConfigError if there are any, without `replace`."""
    others = _of_others(client, folder.resolve())
    if others and not replace:
        names = ", ".join(sorted({deployment.name for deployment, _ in others}))
        server = hide_secrets(str(client.api_url))
        raise ConfigError(
            f"Prefect's server at {server} has deployments of another checkout, {others[0][1]}: {names}",
            "unset PREFECT_API_URL and set TRNFLOW_HOME to a home of this checkout, for a server of its own; "
            "on another machine of the same project put the checkout into that folder and run the worker alone; "
            "or take the server over with `trnflow deploy --replace`, which deletes those deployments",
        )
    return [deployment for deployment, _ in others]


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


def _of_others(client: SyncPrefectClient, folder: Path) -> list[tuple[DeploymentResponse, str]]:
    """Return (deployment, folder) of those with the tag `trnflow` of other folders."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    places = [(deployment, checkout_of(deployment)) for deployment in client.read_deployments(deployment_filter=tagged)]
    return [
        (deployment, where) for deployment, where in places if where is not None and Path(where).resolve() != folder
    ]


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
