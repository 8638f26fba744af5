"""Run a recipe from the command line under Prefect, in this process.

Prefect reads its settings when it is imported: the environment is set first, and the import comes last.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.flows.runner.context import RunContext
from trnflow.flows.services.events import unreachable
from trnflow.flows.services.prefect_server import use_server
from trnflow.flows.services.recovery import HEARTBEATS, PATIENT, TAG
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, TrnflowError
from trnflow.tasks.events import Reader
from trnflow.tasks.system.garbage import no_collections
from trnflow.tasks.system.redaction import hide_override, hide_secrets, scrub

QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the progress display writes to the terminal
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_CLIENT_MAX_RETRIES": "2",  # about 6 seconds a request; Prefect's own 5 take 90
    **PATIENT,
    "DO_NOT_TRACK": "1",
}
"""Settings of Prefect that the user may replace."""


if TYPE_CHECKING:
    from trnflow.flows.deployments import Session
    from trnflow.flows.retraining.change import RetrainReason


def quiet() -> None:
    """Set Prefect's environment variables, before Prefect is imported."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    os.environ.update(HEARTBEATS)


def call_flow(
    name: str,
    parameters: Meta,
    overrides: list[str],
    progress: Reader,
    context: RunContext,
    change: RetrainReason | None = None,
) -> Session | ConfigError:
    """Call a flow of `deployments.py` in this process, and return the session that it filled in, or why the server could
    not begin the flow. The server was reached before (`reach_server`).

    Args:
        overrides: Given to the flow as Prefect may store them, without secrets.
        progress: Reads the events of the run.
        context: Has the plan of the run.

    Raises:
        TrnflowError, CancelledRun: Raised by the flow before it had a result; the error of a stage is in the result.
    """
    url = os.environ["PREFECT_API_URL"]
    logging.raiseExceptions = False  # Prefect's log sender prints each failure to send by the same rule

    with no_collections():
        from httpx import TransportError
        from prefect import tags
        from prefect.exceptions import CancelledRun, ObjectNotFound, PrefectHTTPStatusError

        from trnflow.flows import deployments

    session = deployments.Session(context, (progress,), signal.getsignal(signal.SIGTERM), change)
    token = deployments.SESSION.set(session)
    try:
        with tags(TAG):
            getattr(deployments, name)(**parameters, overrides=[hide_override(text) for text in overrides])
    except (TrnflowError, CancelledRun):
        if session.result is None and session.retrained is None:
            raise
    except (TransportError, ObjectNotFound, PrefectHTTPStatusError) as error:
        # not found: another server, with a database of its own, has taken the port; a status: the server's database is away
        if session.result is None and session.retrained is None:
            if isinstance(error, ObjectNotFound):
                raise
            return unreachable(error)
        if session.result is not None:
            session.result.prefect_lost = True
    finally:
        deployments.SESSION.reset(token)
    if session.result is not None and session.result.prefect_lost:
        session.result.notes.append(
            f"Prefect's server at {hide_secrets(url)} went away: its page does not show how this run ended"
        )
    return session


def reach_server(home: Path) -> ConfigError | None:
    """Set Prefect's environment variables, and start the local server if no other is configured. Return why the server
    does not answer or refuses; None if it answers. Raises as `ensure_server`."""
    quiet()
    url = use_server(home)

    with no_collections():
        from httpx import TransportError
        from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            error = client.api_healthcheck()
    except (TransportError, RuntimeError) as raised:  # Prefect's client raises a RuntimeError for some
        error = raised
    if error is None:
        return None
    said = scrub(" ".join(str(error).split())) or type(error).__name__
    return ConfigError(
        f"Prefect's server at {hide_secrets(url)} can't be reached: {said}",
        "start it, correct PREFECT_API_URL, or run with --direct (no Prefect)",
    )
