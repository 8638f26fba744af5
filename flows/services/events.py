"""Send events to Prefect's server, in one request. If the request fails, an error is raised; Prefect's own sender, a
background thread, would not report the failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trnflow.flows.services.prefect_server import cause_of_failure
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.redaction import hide, hide_override, scrub

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events import Event


CHANGED = "trnflow.data.changed"
RETRAINED = "trnflow.retrain."
"""The beginning of the name of a retraining's event; its outcome follows, such as `promoted`."""
RECIPE = "trnflow.recipe."
"""The beginning of the id that a recipe has in Prefect's events; the recipe's name follows."""


def data_changed(finding: Meta, recipe: str, overrides: list[str]) -> Event:
    """Return the event `trnflow.data.changed`, which says that a recipe's data changed. The event is not sent yet. When
    it is, an automation of Prefect's server runs the deployment `retrain` with this `recipe` and these `overrides`.

    Args:
        finding: The JSON that `trnflow watch` prints; its field `recipe` is the recipe's own name.
        recipe, overrides: As the user gave them, since the deployment `retrain` knows a recipe by the name it was deployed
            with.

    Raises:
        ConfigError: An override contains a secret. The event would carry the secret, or a retrain would run with the
            text that hides the secret in its place.
    """
    if [hide_override(text) for text in overrides] != overrides:
        fix = "write ${NAME} in its place, which the worker's environment fills in, or use --retrain"
        raise ConfigError("an override has a secret, which an event can't carry", fix)
    from prefect.events import Event

    payload = {**hide(finding), "recipe": recipe, "overrides": overrides}
    resource = recipe_resource(finding["recipe"])
    return Event.model_validate({"event": CHANGED, "resource": resource, "payload": payload})


def recipe_resource(name: str) -> dict[str, str]:
    """Return the resource (in Prefect's terms: what an event is about) of an event about a recipe. name: the recipe's
    own name, not its file."""
    return {"prefect.resource.id": f"{RECIPE}{name}", "prefect.resource.name": name}


def send_events(events: list[Event]) -> None:
    """Send events to the Prefect server of PREFECT_API_URL, all in one request; no request if the list is empty.

    Raises:
        ConfigError: The server can't be reached, or refuses an event.
    """
    if not events:
        return
    with connected() as client:
        client.request("POST", "/events", json=[event.model_dump(mode="json") for event in events])


@contextmanager
def connected() -> Iterator[SyncPrefectClient]:
    """Yield a client for requests to the Prefect server of PREFECT_API_URL; close the client when the context ends.

    Raises:
        ConfigError: A request within the context failed: the server can't be reached, fails, or refuses the request.
    """
    from httpx import HTTPError
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            yield client
    except (HTTPError, RuntimeError) as error:  # Prefect's client raises a RuntimeError for some
        raise unreachable(error) from error


def unreachable(error: Exception) -> ConfigError:
    """Return a ConfigError, of one line and a fix, for the exception of a failed request to Prefect's server.

    The error says whether the server can't be reached, refused the request, or failed itself (a status of 500 or more).
    In the last case the error names a full disk of the local server, if that is the cause, else the server's answer;
    the fix says where to look."""
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
