"""The recipes that deployments name, and those that their forms offer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from trnflow.flows.recipes.files import recipe_names
from trnflow.flows.recipes.sent import load_sent
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

PREFECT_FILE = "prefect.yaml"
PARAMETER = "recipe"


Case = tuple[str, ...]
"""(recipe, *overrides) as a deployment's parameters give them."""


def case_of(parameters: Meta) -> Case:
    """Return the `Case` in the parameters of a deployment or schedule."""
    return str(parameters.get(PARAMETER)), *map(str, parameters.get("overrides") or ())


def is_template(case: Case) -> bool:
    """Return whether Prefect fills `{{ }}` in."""
    return any("{{" in text for text in case)


def schedules_of(document: Any, flow: str) -> Iterator[tuple[Meta, Meta]]:
    """Yield (schedule, parameters) of each active schedule of a flow's deployments. document: of a prefect.yaml, which may be
    malformed."""
    deployments = document.get("deployments") if isinstance(document, dict) else None
    for deployment in deployments if isinstance(deployments, list) else ():
        if not isinstance(deployment, dict) or deployment.get("paused"):
            continue
        if re.split("[:.]", str(deployment.get("entrypoint")))[-1] != flow:
            continue
        for schedule in _schedules(deployment):
            if isinstance(schedule, dict) and schedule.get("active", True):
                yield schedule, {**(deployment.get("parameters") or {}), **(schedule.get("parameters") or {})}


def check_recipes(document: Meta, file: object) -> dict[Case, str]:
    """Read all recipes that a prefect.yaml names; return {case: the recipe's own name}. Raises ConfigError."""
    names: dict[Case, str] = {}
    for deployment, parameters in _parameters(document):
        case = case_of(parameters)
        if parameters.get(PARAMETER) is None or is_template(case):
            continue
        try:
            names[case] = load_sent(case[0], case[1:]).name
        except ConfigError as error:
            raise ConfigError(f"{file}: deployment {deployment}: {error.message}", error.fix) from error
    return names


def offer_recipes(client: SyncPrefectClient, deployments: Iterable[DeploymentResponse], named: Iterable[Case]) -> None:
    """Limit the parameter `recipe` of deployments to the shipped recipes and those in `named`."""
    from prefect.client.schemas.actions import DeploymentUpdate

    recipes = sorted({*recipe_names(), *(case[0] for case in named)})
    for deployment in deployments:
        schema: Meta = deployment.parameter_openapi_schema or {}
        if PARAMETER in schema.get("properties", {}):
            # Prefect's form offers these, and Prefect refuses other values before a run begins
            schema["properties"][PARAMETER]["enum"] = recipes
            client.update_deployment(
                deployment.id, DeploymentUpdate.model_validate({"parameter_openapi_schema": schema})
            )


def _parameters(document: Meta) -> Iterator[tuple[str, Meta]]:
    """Yield (name, parameters) of each deployment, and of each of its schedules."""
    for deployment in document["deployments"]:
        own = deployment.get("parameters") or {}
        for further in ({}, *(schedule.get("parameters") or {} for schedule in _schedules(deployment))):
            yield str(deployment["name"]), {**own, **further}


def _schedules(deployment: Meta) -> list[Any]:
    return [*(deployment.get("schedules") or ()), *filter(None, [deployment.get("schedule")])]
