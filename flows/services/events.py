"""Send events to Prefect's server: in one request, which fails where Prefect's own background sender would be silent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flows.services.prefect_server import cause_of_failure
from tasks.artifact import Meta
from tasks.errors import ConfigError
from tasks.system.home import home_folder
from tasks.system.redaction import hide, hide_override, scrub

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events import Event


CHANGED = "trnflow.data.changed"
RETRAINED = "trnflow.retrain."
"""The events of a retraining: this, and how it ended."""
RECIPE = "trnflow.recipe."
"""The id of a recipe as Prefect's events name it: this, and the recipe's name."""


def data_changed(finding: Meta, recipe: str, overrides: list[str]) -> Event:
    """Return the event `trnflow.data.changed`. Its payload has the parameters `recipe` and `overrides` of a retrain.

    Args:
        finding: The JSON of `trnflow watch`; its field `recipe` is the recipe's name.
        recipe, overrides: As the user gave them, since the deployment `retrain` knows a recipe by the name it was deployed
            with.

    Raises:
        ConfigError: An override has a secret. The event would carry it, or a retrain would run with the mask in its place.
    """
    if [hide_override(text) for text in overrides] != overrides:
        fix = "write ${NAME} in its place, which the worker's environment fills in, or use --retrain"
        raise ConfigError("an override has a secret, which an event can't carry", fix)
    from prefect.events import Event

    payload = {**hide(finding), "recipe": recipe, "overrides": overrides}
    resource = recipe_resource(finding["recipe"])
    return Event.model_validate({"event": CHANGED, "resource": resource, "payload": payload})


def recipe_resource(name: str) -> dict[str, str]:
    """Return the resource of an event about a recipe. name: the recipe's own."""
    return {"prefect.resource.id": f"{RECIPE}{name}", "prefect.resource.name": name}


def send_events(events: list[Event]) -> None:
    """Send events to the server of PREFECT_API_URL.

    Raises:
        ConfigError: The server can't be reached, or refuses an event.
    """
    if not events:
        return
    with connected() as client:
        client.request("POST", "/events", json=[event.model_dump(mode="json") for event in events])


@contextmanager
def connected() -> Iterator[SyncPrefectClient]:
    """Context with a client of the server of PREFECT_API_URL.

    Raises:
        ConfigError: A request failed: the server can't be reached, or refuses it.
    """
    from httpx import HTTPError
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            yield client
    except (HTTPError, RuntimeError) as error:  # Prefect's client raises a RuntimeError for some
        raise unreachable(error) from error


def unreachable(error: Exception) -> ConfigError:
    """Return the error of a request to Prefect's server as one line with advice. A server whose database is away, or whose
    disk is full, answers with a status of 500 or more."""
    from httpx import HTTPStatusError
    from prefect.settings import PREFECT_API_URL

    server = f"Prefect's server at {hide(str(PREFECT_API_URL.value()))}"
    if isinstance(error, HTTPStatusError):
        said = scrub(str(error).splitlines()[0])
        if not error.response.is_server_error:
            return ConfigError(f"{server} refused a request: {said}", "read the server's log")
        cause, fix = cause_of_failure(home_folder())
        return ConfigError(f"{server} failed: {cause or said}", fix)
    said = scrub(" ".join(str(error).split())) or type(error).__name__
    return ConfigError(f"{server} can't be reached: {said}", "start it (`trnflow up`), or correct PREFECT_API_URL")
