"""Keep the deployments and automations of one checkout from being overwritten by another that uses the same Prefect server.

Deployments and automations have names, and two checkouts give them the same ones. A checkout is the folder with the
`prefect.yaml`. Prefect keeps it in a deployment as the working directory of its runs. So the deployments with the tag `trnflow`
say which checkout a server belongs to.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flows.services.recovery import TAG
from tasks.errors import ConfigError
from tasks.system.redaction import hide

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

DIRECTORY = "prefect.deployments.steps.set_working_directory"
"""The step with which Prefect sets the working directory of a deployment's runs."""


def claim_server(client: SyncPrefectClient, folder: Path, *, replace: bool) -> None:
    """Make sure that a server has no trnflow deployments of another checkout than `folder`.

    replace: whether to delete those of other checkouts, with their scheduled runs, in place of the error.

    Raises:
        ConfigError: There are some, and `replace` is false. The message names the other checkout.
    """
    others = _of_others(client, folder.resolve())
    if others and not replace:
        names = ", ".join(sorted({deployment.name for deployment, _ in others}))
        raise ConfigError(
            f"Prefect's server at {hide(str(client.api_url))} has deployments of another checkout, {others[0][1]}: {names}",
            "unset PREFECT_API_URL and set TRNFLOW_HOME to a home of this checkout, for a server of its own; "
            "or take the server over with `trnflow deploy --replace`, which deletes those deployments",
        )
    for deployment, _ in others:
        client.delete_deployment(deployment.id)


def checkout_of(deployment: DeploymentResponse) -> str | None:
    """Return the folder that a deployment's runs have as their working directory; None if Prefect fetches its code, or if a
    step before says where the folder is."""
    steps = [step[DIRECTORY]["directory"] for step in deployment.pull_steps or [] if DIRECTORY in step]
    return steps[0] if steps and Path(steps[0]).is_absolute() else None


def _of_others(client: SyncPrefectClient, folder: Path) -> list[tuple[DeploymentResponse, str]]:
    """Return the deployments with the tag `trnflow` of other folders, each with its folder."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    found = [(deployment, checkout_of(deployment)) for deployment in client.read_deployments(deployment_filter=tagged)]
    return [(deployment, where) for deployment, where in found if where is not None and Path(where).resolve() != folder]
