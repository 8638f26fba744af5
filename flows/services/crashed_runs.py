"""Report by an event the retrains whose flow run crashed too often to be scheduled again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, UUID, uuid5

from trnflow.flows.services.checkouts import project_in
from trnflow.flows.services.events import FIRST, PROJECT, RETRAINED, connected, recipe_resource, send_events
from trnflow.flows.services.recovery import FORGOTTEN_SECONDS, age, runs_in
from trnflow.tasks.artifact import Meta

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun


@dataclass(frozen=True)
class CrashedRun:
    """A crashed flow run of the deployment `retrain`.

    starts: how often it began; crashed: when it crashed last; recipe, overrides: as the user gave them.
    """

    id: UUID
    name: str
    starts: int
    crashed: datetime
    recipe: str
    overrides: list[str]

    @property
    def event_id(self) -> UUID:
        """The id of the event that reports the crash."""
        # a second report of one crash has the same id
        return uuid5(NAMESPACE_URL, f"trnflow crashed {self.id} {self.starts}")


def unreported_crashes(times: int) -> list[CrashedRun]:
    """Return the last day's unreported retrains that crashed after more than `times` starts. Raises ConfigError."""
    with connected() as client:
        own = {
            deployment.id
            for deployment in client.read_deployments()
            if project_in(deployment) == os.environ.get(PROJECT, FIRST)
        }
        retrains = [run for run in runs_in(client, ["retrain"], ["CRASHED"]) if run.deployment_id in own]
        crashed = [_crashed_run(run) for run in retrains if run.run_count > times and age(run) < FORGOTTEN_SECONDS]
        return [run for run in crashed if not _is_sent(client, run.event_id)]


def _crashed_run(run: FlowRun) -> CrashedRun:
    assert run.state is not None
    given = run.parameters
    overrides = list(given.get("overrides") or [])
    return CrashedRun(run.id, run.name, run.run_count, run.state.timestamp, str(given.get("recipe")), overrides)


def _is_sent(client: SyncPrefectClient, event: UUID) -> bool:
    answer = client.request("POST", "/events/filter", json={"filter": {"id": {"id": [str(event)]}}, "limit": 1})
    return bool(answer.json()["events"])


def send_report(run: CrashedRun, name: str, payload: Meta) -> None:
    """Send the event `trnflow.retrain.failed`. Raises ConfigError if Prefect's server can't be reached.

    name: the recipe's own; payload: the JSON of the retrain's outcome, without secrets.
    """
    from prefect.events import Event

    related = [{"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.role": "flow-run"}]
    event = {"id": run.event_id, "event": f"{RETRAINED}failed", "payload": payload, "related": related}
    send_events([Event.model_validate({**event, "resource": recipe_resource(name)})])
