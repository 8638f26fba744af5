"""The recipes that deployments name, and the list of recipes that the form of a deployment offers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.files import recipe_names
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

PARAMETER = "recipe"


Case = tuple[str, ...]
"""The parameters of a deployment that say which recipe it runs: the value of `recipe`, and the overrides."""


def case_of(parameters: Meta) -> Case:
    """Return the recipe and the overrides (`section.setting=value`) among the parameters of a deployment or schedule,
    as (recipe, *overrides)."""
    return str(parameters.get(PARAMETER)), *map(str, parameters.get("overrides") or ())


def check_recipes(document: Meta, file: object) -> dict[Case, str]:
    """Read all recipes that the deployments and schedules of a prefect.yaml name. Return
    {(recipe, *overrides) as given in the prefect.yaml: the recipe's own name}.

    Recipes and overrides with `{{ }}`, which Prefect fills in, are left out. document: the content of the prefect.yaml;
    file: its path, for the message of an error. Raises ConfigError if a recipe can't be read.
    """
    found: dict[Case, str] = {}
    for deployment, parameters in _parameters(document):
        case = case_of(parameters)
        if parameters.get(PARAMETER) is None or any("{{" in text for text in case):
            continue
        try:
            found[case] = settings.load(case[0], case[1:]).name
        except ConfigError as error:
            raise ConfigError(f"{file}: deployment {deployment}: {error.message}", error.fix) from error
    return found


def offer_recipes(client: SyncPrefectClient, deployments: Iterable[DeploymentResponse], named: Iterable[Case]) -> None:
    """Limit the parameter `recipe` of deployments on Prefect's server to the shipped recipes (the files in `conf/`) and
    the recipes in `named`.

    Prefect's form for a run then offers these recipes, and Prefect refuses other values before a run begins.

    Args:
        deployments: The deployments to change; those without a parameter `recipe` are left alone.
        named: (recipe, *overrides) of each deployment or schedule; only the recipe is used.
    """
    from prefect.client.schemas.actions import DeploymentUpdate

    recipes = sorted({*recipe_names(), *(case[0] for case in named)})
    for deployment in deployments:
        schema: dict[str, Any] = deployment.parameter_openapi_schema or {}
        if PARAMETER in schema.get("properties", {}):
            schema["properties"][PARAMETER]["enum"] = recipes
            client.update_deployment(
                deployment.id, DeploymentUpdate.model_validate({"parameter_openapi_schema": schema})
            )


def _parameters(document: Meta) -> Iterator[tuple[str, Meta]]:
    """Yield the name and the parameters of each deployment, and of each of its schedules."""
    for deployment in document["deployments"]:
        own = deployment.get("parameters") or {}
        schedules = [*(deployment.get("schedules") or ()), *filter(None, [deployment.get("schedule")])]
        for further in ({}, *(schedule.get("parameters") or {} for schedule in schedules)):
            yield str(deployment["name"]), {**own, **further}
