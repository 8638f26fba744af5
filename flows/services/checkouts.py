"""Keep two checkouts from overwriting one another's deployments on one Prefect server.

Two checkouts give their deployments the same names. Prefect stores the checkout's folder in each deployment, as the
working directory of its runs, which tells them apart. A checkout that takes a server over first registers its
deployments as *trials*; the other checkout's are deleted only after Prefect accepted every trial.
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
from trnflow.tasks.system.redaction import hide

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

DIRECTORY = "prefect.deployments.steps.set_working_directory"
"""The step with which Prefect sets the working directory of a deployment's runs."""


TRIAL = " (trial of deploy --replace)"
"""The suffix of a trial's name."""


def others_on(client: SyncPrefectClient, folder: Path, *, replace: bool) -> list[DeploymentResponse]:
    """Return the deployments with the tag `trnflow` of other checkouts than `folder`.

    Raises:
        ConfigError: There are such deployments, and `replace` is false. The message names the other checkout.
    """
    others = _of_others(client, folder.resolve())
    if others and not replace:
        names = ", ".join(sorted({deployment.name for deployment, _ in others}))
        raise ConfigError(
            f"Prefect's server at {hide(str(client.api_url))} has deployments of another checkout, {others[0][1]}: {names}",
            "unset PREFECT_API_URL and set TRNFLOW_HOME to a home of this checkout, for a server of its own; "
            "on another machine of the same project put the checkout into that folder and run the worker alone; "
            "or take the server over with `trnflow deploy --replace`, which deletes those deployments",
        )
    return [deployment for deployment, _ in others]


def try_deployments(client: SyncPrefectClient, document: Meta, register: Callable[[Path], None]) -> None:
    """Register the deployments of a prefect.yaml as trials, under other names and without active schedules, then delete
    all trials, those of earlier commands too.

    Args:
        document: The content of the prefect.yaml.
        register: Registers all deployments of a file. Its error is raised.
    """
    with tempfile.TemporaryDirectory(prefix="trnflow-deploy-") as folder:
        file = Path(folder) / "prefect.yaml"
        file.write_text(yaml.safe_dump(_as_trials(document)), encoding="utf-8")
        try:
            register(file)
        finally:
            delete(client, (one for one in client.read_deployments() if one.name.endswith(TRIAL)))


def delete(client: SyncPrefectClient, deployments: Iterable[DeploymentResponse]) -> None:
    """Delete deployments from Prefect's server, with their scheduled runs."""
    for deployment in deployments:
        client.delete_deployment(deployment.id)


def checkout_of(deployment: DeploymentResponse) -> str | None:
    """Return the folder that a deployment's runs have as working directory; None if it names no absolute folder."""
    steps = [step[DIRECTORY]["directory"] for step in deployment.pull_steps or [] if DIRECTORY in step]
    return steps[0] if steps and Path(steps[0]).is_absolute() else None


def _of_others(client: SyncPrefectClient, folder: Path) -> list[tuple[DeploymentResponse, str]]:
    """Return the deployments with the tag `trnflow` of other folders, each with its folder."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    found = [(deployment, checkout_of(deployment)) for deployment in client.read_deployments(deployment_filter=tagged)]
    return [(deployment, where) for deployment, where in found if where is not None and Path(where).resolve() != folder]


def _as_trials(document: Meta) -> Meta:
    """Return the content of a prefect.yaml with the names of trials, and with no active schedule."""

    def inactive(schedule: Meta | None) -> Meta | None:
        return {**schedule, "active": False} if schedule else schedule

    trials = []
    for one in document["deployments"]:
        trial = {**one, "name": f"{one['name']}{TRIAL}"}
        if "schedule" in trial:
            trial["schedule"] = inactive(trial["schedule"])
        if trial.get("schedules"):
            trial["schedules"] = [inactive(schedule) for schedule in trial["schedules"]]
        trials.append(trial)
    return {**document, "deployments": trials}
