"""The automations that `trnflow deploy` creates in Prefect:

- `trnflow: data changed` runs the deployment `retrain` on the event `trnflow.data.changed`.
- `trnflow: retrained` notifies of each that was promoted, kept, stopped or failed.
- `trnflow: NAME did not run` notifies when none ended in 1.5 times the schedule's longest pause.

Those of a server's later projects begin with `trnflow PROJECT:`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trnflow.flows.services.deployed_recipes import Case, case_of
from trnflow.flows.services.events import CHANGED, FIRST, RETRAINED, automation, resource_id
from trnflow.flows.services.notification import Block, find_block, forget_addresses, plain_message, retrain_message
from trnflow.flows.services.recovery import TAG
from trnflow.flows.services.schedules import dates_of

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.events.schemas.automations import Automation, AutomationCore

NOTIFIED = ("promoted", "kept", "stopped", "failed")
"""The outcomes of a retrain that are notified."""


def renew(
    client: SyncPrefectClient,
    retrain: DeploymentResponse | None,
    recipe_names: dict[Case, str],
    notify: str | None,
    shared: Iterable[AutomationCore] = (),
    project: str = FIRST,
    projects: Iterable[str] = (),
) -> tuple[list[str], Block | None]:
    """Create, update and delete automations so that a project has exactly the wanted ones with the tag `trnflow`; return
    their names, and the block that notifies, if any.

    Args:
        recipe_names: {case: the recipe's own name}.
        notify: The value of TRNFLOW_NOTIFY; None keeps the block in use.
        shared: Wanted automations of all projects.
        projects: Those with deployments on the server: automations of others are deleted. A disabled one stays disabled.

    Raises ConfigError for a block that Prefect does not have, or that can't notify.
    """
    from prefect.events.filters import AutomationFilter, AutomationFilterTags

    ours = AutomationFilter(tags=AutomationFilterTags(all_=[TAG]))
    named = {each.name: each for each in client.read_automations(automations=ours)}
    wanted = {each.name: each for each in shared}
    others = tuple(_prefix(each) for each in projects if each != project)
    present = {name: each for name, each in named.items() if name in wanted or not name.startswith(others)}
    block = find_block(client, notify, project) if notify is not None else _block_of(client, present.values())
    wanted |= {each.name: each for each in _wanted(retrain, recipe_names, block, project)}
    for name, each in wanted.items():
        # an unchanged automation is not updated: Prefect would begin to count its time anew
        _put(client, each.model_copy(update={"tags": [TAG]}), present.get(name))
    for name in present.keys() - wanted.keys():
        client.delete_automation(present[name].id)
    if notify is not None:
        forget_addresses(client, block, project)
    return sorted(wanted), block


def _prefix(project: str) -> str:
    return "trnflow: " if project == FIRST else f"trnflow {project}: "


def _wanted(
    retrain: DeploymentResponse | None, recipe_names: dict[Case, str], block: Block | None, project: str
) -> Iterator[AutomationCore]:
    if retrain is not None:
        yield _data_changed(retrain, project)
    if block is not None:
        yield _retrained(block, project)
    if block is not None and retrain is not None:
        for recipe, pause in _pauses(retrain, recipe_names).items():
            yield _did_not_run(recipe, pause, block, project)


def _data_changed(retrain: DeploymentResponse, project: str) -> AutomationCore:
    from prefect.events.actions import RunDeployment

    payload = {"recipe": "{{ event.payload.recipe }}", "overrides": "{{ (event.payload.overrides or []) }}"}
    run = RunDeployment(source="selected", deployment_id=retrain.id, job_variables=None, parameters=payload)
    trigger = {"expect": {CHANGED}, "match": _match("*", project)}
    return automation(f"{_prefix(project)}data changed", "Retrain a recipe when its data changed.", trigger, run)


def _retrained(block: Block, project: str) -> AutomationCore:
    description = f"Send a notification when a retraining was {', '.join(NOTIFIED[:-1])} or {NOTIFIED[-1]}."
    trigger = {"expect": {RETRAINED + outcome for outcome in NOTIFIED}, "match": _match("*", project)}
    return automation(f"{_prefix(project)}retrained", description, trigger, retrain_message(block))


def _did_not_run(recipe: str, pause: timedelta, block: Block, project: str) -> AutomationCore:
    """Return the automation that notifies when no retrain of a recipe ended within 1.5 times `pause`."""
    within = max(1.5 * pause, timedelta(seconds=10))  # Prefect's least
    text = (
        f"{recipe} did not run: no retrain of it ended within {_said(within)}. `trnflow status` shows one that still runs; "
        "without a worker none begins: `trnflow worker` starts one."
    )
    name = f"{_prefix(project)}{recipe} did not run"
    description = f"Send a notification when no retraining of {recipe} ended within {_said(within)}."
    # one event ends a waiting time and begins the next, so each retraining begins it anew
    ended = {RETRAINED + "*"}
    trigger = {
        "posture": "Proactive",
        "after": ended,
        "expect": ended,
        "match": _match(recipe, project),
        "within": within,
    }
    message = plain_message(block, name, text, event="trnflow.retrain.missing", recipe=recipe)
    return automation(name, description, trigger, message)


def _pauses(retrain: DeploymentResponse, recipe_names: dict[Case, str]) -> dict[str, timedelta]:
    """Return {recipe: longest time between two of the next 1000 dates of its active schedules}."""
    pauses: dict[str, timedelta] = {}
    for schedule in retrain.schedules:
        parameters = {**retrain.parameters, **schedule.parameters}
        name = recipe_names.get(case_of(parameters))
        is_active = schedule.active and not retrain.paused
        dates = dates_of(schedule.schedule.model_dump(), datetime.now(UTC)) if is_active else []
        pause = max((later - earlier for earlier, later in pairwise(dates)), default=None)
        if name is not None and pause is not None:
            # of several schedules the one with the shortest pause counts
            pauses[name] = min(pause, pauses.get(name, pause))
    return pauses


def _match(recipe: str, project: str) -> Any:
    return {"prefect.resource.id": resource_id(recipe, project)}


def _put(client: SyncPrefectClient, wanted: AutomationCore, present: Automation | None) -> None:
    if present is None:
        client.create_automation(wanted)
        return
    unsaid = {"id", "owner_resource"}  # Prefect refuses them in an update
    document = wanted.model_dump(exclude=unsaid) | {"enabled": present.enabled}
    if document != present.model_dump(exclude=unsaid):
        client.update_automation(present.id, type(wanted).model_validate(document))


def _block_of(client: SyncPrefectClient, present: Iterable[Automation]) -> Block | None:
    """Return the block through which the present automations notify, if Prefect still has it."""
    from prefect.exceptions import ObjectNotFound

    for each in present:
        for action in each.actions:
            if (number := getattr(action, "block_document_id", None)) is None:
                continue
            try:
                document = client.read_block_document(number, include_secrets=False)
            except ObjectNotFound:
                continue
            assert document.block_type is not None
            return Block(document.id, document.block_type.slug, str(document.name))
    return None


def _said(time: timedelta) -> str:
    """Return a duration in words."""
    seconds = time.total_seconds()
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} seconds"
