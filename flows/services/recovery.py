"""End the flow runs whose process was lost, and schedule them again.

Nobody reports the end of a process whose worker died, too. Automations mark a run without heartbeats as crashed. They
miss a run that stops together with the server, and events that the server lost; `tend_runs` finds these.
"""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from trnflow.flows.services.events import automation, connected, send_events
from trnflow.tasks.artifact import Meta
from trnflow.tasks.system.home import remove_temporary_folders, temporary_folder

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.filters import FlowFilter
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import WorkerFlowRunResponse
    from prefect.events import Event
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore

# Automations act on flow runs with this tag alone: other flows may have the same names, but send fewer heartbeats.
TAG = "trnflow"
# seconds: the shortest interval that Prefect accepts
HEARTBEATS = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
# Prefect's client asks again on status 503 (SQLite is locked); 500 is the answer while PostgreSQL is away
PATIENT = {"PREFECT_CLIENT_RETRY_EXTRA_CODES": "500"}
# seconds between a worker's questions for runs: by Prefect's default of 10 a run waits 5 on average
PROMPT = {"PREFECT_WORKER_QUERY_SECONDS": "1"}

SILENT_SECONDS = 90.0
PENDING_SECONDS = 300.0
CANCELLING_SECONDS = 900.0
LEFT_SECONDS = 120.0
FORGOTTEN_SECONDS = 86400.0
"""The age at which `tend_runs` leaves a crashed run alone."""
TIMES = 3
AGAIN = "The run crashed, and was scheduled again. What it finished is not done again."

FLOWS = ["finetune", "prepare", "retrain", "sweep", "watch"]
# `watch` is not among them: it begins a new run every few minutes anyway
SCHEDULED_AGAIN = ["finetune", "prepare", "retrain", "sweep"]

TAGGED = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}
NEWEST_FIRST: Any = "START_TIME_DESC"
ANY = "prefect.flow-run.*"
IS_RUNNING = "trnflow.run.is-running"
IS_CANCELLING = "trnflow.run.is-cancelling"
ENDS = [f"prefect.flow-run.{name}" for name in ("Cancelled", "Completed", "Crashed", "Failed")]


def recovery_automations(
    silent: float = SILENT_SECONDS,
    pending: float = PENDING_SECONDS,
    cancelling: float = CANCELLING_SECONDS,
    times: int = TIMES,
) -> list[AutomationCore]:
    """Return the automations that mark lost flow runs as crashed or cancelled, and schedule crashed ones again.

    Args:
        silent: Seconds without a heartbeat until a run is crashed; Prefect's least is 10.
        pending: Seconds until a run that did not begin is crashed.
        cancelling: Seconds until a run that was asked to stop is cancelled.
        times: How often a deployment's crashed run is scheduled again.
    """
    from prefect.client.schemas.objects import StateType

    crashed = {"prefect.flow-run.Crashed"}
    again = _to(StateType.SCHEDULED, AGAIN)
    return [
        _lost(
            "trnflow: silent runs are crashed",
            f"A flow run that sends no heartbeat for {silent:.0f} s is marked as crashed.",
            {"prefect.flow-run.heartbeat", IS_RUNNING},
            {ANY},
            silent,
            _to(StateType.CRASHED, f"No heartbeat for {silent:.0f} s: the run's process or machine is gone."),
        ),
        _lost(
            "trnflow: runs that do not begin are crashed",
            f"A flow run that is pending for {pending:.0f} s is marked as crashed.",
            {f"prefect.flow-run.{name}" for name in ("Pending", "Submitting", "InfrastructurePending")},
            {ANY},
            pending,
            _to(StateType.CRASHED, _unbegun(pending)),
        ),
        _lost(
            "trnflow: runs that do not stop are cancelled",
            f"A flow run that is being cancelled for {cancelling:.0f} s is marked as cancelled.",
            {"prefect.flow-run.Cancelling", IS_CANCELLING},
            {*ENDS},
            cancelling,
            _to(StateType.CANCELLED, f"The run did not report its end within {cancelling:.0f} s."),
        ),
        _again(
            "trnflow: crashed runs are scheduled again",
            f"A flow run of a deployment that crashed is scheduled again, at most {times} times, and once if it does not begin.",
            crashed,
            [str(count) for count in range(1, times + 1)],
            again,
        ),
        _again(
            "trnflow: runs that crashed before they began are scheduled again",
            "A flow run of a deployment that crashed before it began is scheduled again, once a day at most.",
            crashed,
            ["0"],
            again,
        ),
    ]


def tend_runs(pending: float = PENDING_SECONDS, left: float = LEFT_SECONDS, times: int = TIMES) -> int:
    """Act on the lost flow runs that the automations missed, and return their number, live ones among them.

    A run that did not begin within `pending` seconds is crashed; one that crashed more than `left` seconds and less than a day
    ago, after at most `times` starts, is scheduled again. Raises ConfigError if Prefect's server can't be reached.
    """
    from prefect.states import Scheduled

    unbegun = end_unbegun_runs(pending)
    with connected() as client:
        names = {flow.id: flow.name for flow in client.read_flows(flow_filter=our_flows())}
        runs = runs_in(client, FLOWS, ["RUNNING", "CANCELLING", "CRASHED"])
        left_runs = [run for run in runs if _is_left(run, names[run.flow_id], left, times)]
        crashed = [run for run in left_runs if not _was_tried(client, run)]
        for run in crashed:
            client.set_flow_run_state(run.id, Scheduled(message=AGAIN))
    lost = [run for run in runs if _is_unfinished(run)]
    # the event opens an automation's window again: without a heartbeat in it the run is crashed or cancelled
    send_events([_announcement(run, names[run.flow_id]) for run in lost])
    return unbegun + len(lost) + len(crashed)


def our_flows() -> FlowFilter:
    """Return Prefect's filter for trnflow's five flows."""
    from prefect.client.schemas.filters import FlowFilter

    return FlowFilter.model_validate({"name": {"any_": FLOWS}})


def runs_in(client: SyncPrefectClient, flows: list[str], states: list[str]) -> list[FlowRun]:
    """Return the flow runs of these flows and types of states that have our tag, the newest first."""
    from prefect.client.schemas.filters import FlowFilter, FlowRunFilter

    flow = FlowFilter.model_validate({"name": {"any_": flows}})
    run = FlowRunFilter.model_validate({"state": {"type": {"any_": states}}, "tags": {"all_": [TAG]}})
    return client.read_flow_runs(flow_filter=flow, flow_run_filter=run, sort=NEWEST_FIRST)


def end_unbegun_runs(pending: float = PENDING_SECONDS) -> int:
    """Mark runs as crashed that did not begin within `pending` seconds; return their number. Raises ConfigError."""
    from prefect.states import Crashed

    with connected() as client:
        runs = runs_in(client, FLOWS, ["PENDING"])
        unbegun = [run for run in runs if run.deployment_id is not None and age(run) > pending]
        for run in unbegun:
            client.set_flow_run_state(run.id, Crashed(message=_unbegun(pending)))
    return len(unbegun)


def _unbegun(pending: float) -> str:
    return f"The run did not begin within {pending:.0f} s after a worker took it."


def prefect_worker() -> None:
    """Run Prefect's command line with `leave_counted_runs` and `start_flows_at_once`."""
    # a script's `trnflow worker &` begins with SIGINT ignored, by which Prefect's worker passes SIGTERM on to itself
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from prefect.cli import app

    leave_counted_runs()
    start_flows_at_once()
    temporary_folder()
    try:
        app()
    finally:
        remove_temporary_folders()


def leave_counted_runs() -> None:
    """Let Prefect's workers leave a flow run alone while an earlier process of this run counts against the limit."""
    from prefect.workers.process import ProcessWorker

    # unchanged, a worker that takes a killed process's run raises RuntimeError and ends; so it takes the run 10 s later
    submit = ProcessWorker._submit_scheduled_flow_runs

    async def submit_free(worker: ProcessWorker, flow_run_response: list[WorkerFlowRunResponse]) -> list[FlowRun]:
        counted = worker.limiter.statistics().borrowers
        return await submit(worker, [response for response in flow_run_response if response.flow_run.id not in counted])

    ProcessWorker._submit_scheduled_flow_runs = submit_free  # type: ignore[assignment,method-assign]


def start_flows_at_once() -> None:
    """Let Prefect's workers start a flow run's process without one before it that prepares a folder for its code.

    Both import Prefect, for seconds. A deployment of ours has its code in its own folder, which the flow's process enters."""
    from prefect.workers import process as module

    process: Any = module
    prepare = process.ProcessJobConfiguration.prepare_for_flow_run

    def prepare_command(configuration: Any, *arguments: Any, **named: Any) -> None:
        prepare(configuration, *arguments, **named)
        configuration._command_configured = True

    process.ProcessJobConfiguration.prepare_for_flow_run = prepare_command
    # as Prefect does otherwise: a signal to the worker's process group does not reach the flow runs
    own_group = partial(process.EngineCommandStarter, isolate_process_group=True, env_overrides_settings=True)
    process.EngineCommandStarter = own_group


def _announcement(run: FlowRun, flow: str) -> Event:
    """Return an event of a flow run, after which an automation waits for the run's next heartbeat."""
    from prefect.events import Event

    is_cancelling = run.state is not None and run.state.is_cancelling()
    return Event.model_validate(
        {
            "event": IS_CANCELLING if is_cancelling else IS_RUNNING,
            "resource": {"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.name": run.name},
            "related": [
                {
                    "prefect.resource.id": f"prefect.flow.{run.flow_id}", "prefect.resource.role": "flow",
                    "prefect.resource.name": flow,
                },
                {"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"},
            ],
        }
    )  # fmt: skip


def _is_unfinished(run: FlowRun) -> bool:
    """Return whether a flow run, other than the present one, is running or being cancelled."""
    if run.state is None or str(run.id) == os.environ.get("PREFECT__FLOW_RUN_ID"):
        return False
    return run.state.is_running() or run.state.is_cancelling()


def _is_left(run: FlowRun, flow: str, left: float, times: int) -> bool:
    """Return whether a crashed flow run should have been scheduled again."""
    is_ours = run.deployment_id is not None and flow in SCHEDULED_AGAIN and 1 <= run.run_count <= times
    return is_ours and run.state is not None and run.state.is_crashed() and left < age(run) < FORGOTTEN_SECONDS


def _was_tried(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Return whether a crashed flow run was scheduled again since, and crashed before it could begin."""
    states = sorted(client.read_flow_run_states(run.id), key=lambda state: state.timestamp)
    ran = max((number for number, state in enumerate(states) if state.is_running()), default=0)
    return any(state.is_scheduled() for state in states[ran + 1 :])


def age(run: FlowRun) -> float:
    """Return the seconds since a flow run took on its state."""
    assert run.state is not None
    return (datetime.now(UTC) - run.state.timestamp).total_seconds()


def _to(state: Any, message: str) -> ChangeFlowRunState:
    from prefect.events.actions import ChangeFlowRunState

    return ChangeFlowRunState(name=None, state=state, message=message, force=False)


def _lost(
    name: str, description: str, after: set[str], expect: set[str], seconds: float, action: ChangeFlowRunState
) -> AutomationCore:
    """Return an automation that acts if none of the events `expect` follows one of `after` within `seconds`."""
    trigger = {
        "after": after, "expect": expect, "match": {"prefect.resource.id": ANY}, "match_related": [_flow(FLOWS), TAGGED],
        "for_each": {"prefect.resource.id"}, "posture": "Proactive", "within": timedelta(seconds=seconds),
    }  # fmt: skip
    return automation(name, description, trigger, action)


def _again(
    name: str, description: str, expect: set[str], counts: list[str], action: ChangeFlowRunState
) -> AutomationCore:
    """Return an automation that acts, once a day at most, on an event of a run with one of these numbers of starts."""
    trigger = {
        "expect": expect, "match": {"prefect.resource.id": ANY, "prefect.run-count": counts},
        "match_related": [_flow(SCHEDULED_AGAIN), TAGGED, {"prefect.resource.role": "deployment"}],
        "for_each": {"prefect.resource.id", "prefect.run-count"}, "within": timedelta(days=1),
    }  # fmt: skip
    return automation(name, description, trigger, action)


def _flow(names: list[str]) -> Meta:
    return {"prefect.resource.role": "flow", "prefect.resource.name": names}
