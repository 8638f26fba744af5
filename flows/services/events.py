"""Send events to Prefect's server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trnflow.flows.services.prefect_address import CLIENT
from trnflow.flows.services.prefect_server import cause_of_failure
from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.redaction import hide_override, hide_secrets, scrub

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events import Event
    from prefect.events.actions import ActionTypes
    from prefect.events.schemas.automations import AutomationCore


CHANGED = "trnflow.data.changed"
RETRAINED = "trnflow.retrain."
"""A retrain's event: this and its outcome, such as `promoted`."""
PROJECT = "TRNFLOW_PROJECT"
"""The variable with the project of a deployment's runs."""
FIRST = "trnflow"
"""The project of a server's first checkout."""


def data_changed(finding: Mapping[str, Json], recipe: str, overrides: list[str]) -> Event:
    """Return the event `trnflow.data.changed`. Raises ConfigError if an override contains a secret.

    finding: the JSON that `trnflow watch` prints; recipe, overrides: as the user gave them.
    """
    if [hide_override(text) for text in overrides] != overrides:
        fix = "write ${NAME} in its place, which the worker's environment fills in, or use --retrain"
        raise ConfigError("an override has a secret, which an event can't carry", fix)
    from prefect.events import Event

    # the deployment knows the recipe by the name that the user gave
    payload = {**hide_secrets(finding), "recipe": recipe, "overrides": overrides}
    resource = recipe_resource(finding["recipe"])
    return Event.model_validate({"event": CHANGED, "resource": resource, "payload": payload})


def recipe_resource(name: str) -> dict[str, str]:
    """Return the resource of an event about a recipe, in this process's project."""
    number = resource_id(name, os.environ.get(PROJECT, FIRST))
    return {"prefect.resource.id": number, "prefect.resource.name": name}


def resource_id(name: str, project: str) -> str:
    return f"trnflow.recipe.{name}" if project == FIRST else f"trnflow.project.{project}.recipe.{name}"


def automation(name: str, description: str, trigger: Meta, action: ActionTypes) -> AutomationCore:
    """Return an automation of Prefect. trigger: the fields of an `EventTrigger`."""
    from prefect.events.schemas.automations import AutomationCore, EventTrigger

    found = EventTrigger.model_validate(trigger)
    return AutomationCore(name=name, description=description, trigger=found, actions=[action])


def send_events(events: list[Event]) -> None:
    """Send events in one request. Raises ConfigError if Prefect's server can't be reached or refuses one."""
    if not events:
        return
    with connected() as client:
        # Prefect's own background sender would not report a failure
        client.request("POST", "/events", json=[event.model_dump(mode="json") for event in events])


@contextmanager
def connected() -> Iterator[SyncPrefectClient]:
    """Yield a client of the Prefect server of PREFECT_API_URL. Raises ConfigError if a request within fails."""
    from httpx import HTTPError
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            yield client
    except (HTTPError, RuntimeError) as error:  # Prefect's client raises a RuntimeError for some
        raise unreachable(error) from error


def unreachable(error: Exception) -> ConfigError:
    """Return a ConfigError for a failed request: unreachable, refused, or failed for a full disk."""
    from httpx import HTTPStatusError
    from prefect.settings import PREFECT_API_URL

    server = f"Prefect's server at {hide_secrets(str(PREFECT_API_URL.value()))}"
    if isinstance(error, HTTPStatusError):
        message = scrub(str(error).splitlines()[0])
        if error.response.status_code == 401:
            return ConfigError(
                f"{server} refuses the login", f"set {CLIENT} to the server's own (docs/services.md#logins)"
            )
        if not error.response.is_server_error:
            return ConfigError(f"{server} refused a request: {message}", "read the server's log")
        cause, fix = cause_of_failure(home_folder())
        return ConfigError(f"{server} failed: {cause or message}", fix)
    message = scrub(" ".join(str(error).split())) or type(error).__name__
    return ConfigError(f"{server} can't be reached: {message}", "start it (`trnflow up`), or correct PREFECT_API_URL")
