"""Report retrains whose flow run crashed so often that it is not scheduled again: nobody else does, since the run's own
process is gone.

Called by `trnflow worker` and by the deployment `watch`, after `tend_runs`.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, UUID, uuid5

from flows.recipes import recipe as settings
from flows.recipes.recipe import Recipe
from flows.retraining.ended import newest_ended
from flows.retraining.lease import hold_lease
from flows.retraining.outcome import Retrained
from flows.retraining.retrain import failure, record_failure
from flows.runner.run import open_store
from flows.services.events import send_events, unreachable
from flows.services.recovery import FORGOTTEN_SECONDS, NEWEST_FIRST, TAG, TIMES
from tasks.errors import ProcessFailed, TrnflowError
from tasks.store import Store
from tasks.system.redaction import hide

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.events import Event


def report_crashed(times: int = TIMES) -> int:
    """Report each retrain that crashed more than `times` times within the last day, once; return their number.

    The report is the event `trnflow.retrain.failed`, and the store's file of how the newest retrain ended. The file is
    written after the event was sent, under the lease of the recipe's retraining. A crash is not reported if another retrain
    of the recipe has ended since, or is under way. A lease whose holder seems dead is watched for its time to live.

    Raises:
        ConfigError: Prefect's server can't be reached. The crash is reported the next time.
    """
    from httpx import HTTPError
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            crashed = [run for run in _crashed(client, times) if not _is_sent(client, _event_id(run))]
    except (HTTPError, RuntimeError) as error:
        raise unreachable(error) from error
    return sum(report(run) for run in crashed)


def _crashed(client: SyncPrefectClient, times: int) -> list[FlowRun]:
    """Return the flow runs of the deployment `retrain` that crashed lately and are not scheduled again."""
    from prefect.client.schemas import filters

    wanted = {"state": {"type": {"any_": ["CRASHED"]}}, "tags": {"all_": [TAG]}}
    found = client.read_flow_runs(
        flow_filter=filters.FlowFilter(name=filters.FlowFilterName(any_=["retrain"])),
        flow_run_filter=filters.FlowRunFilter.model_validate(wanted),
        sort=NEWEST_FIRST,
    )
    return [run for run in found if run.deployment_id and run.run_count > times and _is_recent(run)]


def _is_recent(run: FlowRun) -> bool:
    return (datetime.now(UTC) - _when(run)).total_seconds() < FORGOTTEN_SECONDS


def _when(run: FlowRun) -> datetime:
    assert run.state is not None
    return run.state.timestamp


def _event_id(run: FlowRun) -> UUID:
    """The same for each report of a crash, so that a crash is reported once."""
    return uuid5(NAMESPACE_URL, f"trnflow crashed {run.id} {run.run_count}")


def _is_sent(client: SyncPrefectClient, event: UUID) -> bool:
    answer = client.request("POST", "/events/filter", json={"filter": {"id": {"id": [str(event)]}}, "limit": 1})
    return bool(answer.json()["events"])


def report(run: FlowRun) -> bool:
    """Send the event of a crashed retrain and put the crash on record. Return whether the crash was reported: False if
    another retrain of the recipe has ended since, or is under way.

    Raises:
        ConfigError: Prefect's server can't be reached. Nothing is on record then.
    """
    given, error = str(run.parameters.get("recipe")), _error(run)
    with ExitStack() as held:
        try:
            recipe = settings.load(given, run.parameters.get("overrides") or [])
            store = open_store(recipe)
            lease = held.enter_context(hold_lease(recipe, store, wait=False))
            if isinstance(lease, str) or _has_ended_since(recipe, store, run):
                return False
        except TrnflowError:  # the recipe or the store can't be used: the recipe's name is that of the file
            send_events([_event(run, Retrained(Path(given).stem, None, False, error.message, error=error))])
            return True
        send_events([_event(run, failure(recipe, store, error))])
        record_failure(recipe, store, error)
    return True


def _error(run: FlowRun) -> ProcessFailed:
    given = run.parameters.get("recipe")
    fix = (
        f"see the log of the flow run {run.name} in Prefect; `trnflow retrain {given}` goes on from its last checkpoint"
    )
    return ProcessFailed(f"the retrain crashed {run.run_count} times, and is not scheduled again", fix)


def _has_ended_since(recipe: Recipe, store: Store, run: FlowRun) -> bool:
    """Whether a retrain of the recipe has ended since the crash, or the crash is on record already."""
    ended = newest_ended(store, recipe.name)
    return ended is not None and datetime.fromisoformat(ended.created) > _when(run)


def _event(run: FlowRun, done: Retrained) -> Event:
    from prefect.events import Event

    name = done.recipe
    return Event.model_validate(
        {
            "id": _event_id(run), "event": "trnflow.retrain.failed", "payload": hide(done.to_json()),
            "resource": {"prefect.resource.id": f"trnflow.recipe.{name}", "prefect.resource.name": name},
            "related": [{"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.role": "flow-run"}],
        }
    )  # fmt: skip
