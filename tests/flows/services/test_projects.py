"""What deployments decide before a server is asked, or of its answers: names, pauses, which crash is a new one."""

from __future__ import annotations

import logging
import uuid
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from trnflow.flows.cli.prefect_run import call_flow
from trnflow.flows.services import automations, crashed_runs, deploy, recovery
from trnflow.flows.services.automations import _did_not_run, _pauses, _put, _wanted, renew
from trnflow.flows.services.checkouts import DIRECTORY, named, new_project, project_file, project_of, replaced_by
from trnflow.flows.services.crashed_runs import CrashedRun, _crashed_run, unreported_crashes
from trnflow.flows.services.events import data_changed
from trnflow.flows.services.notification import VARIABLE, Block, check_block, take_setting
from trnflow.flows.services.recovery import _is_left, _is_unfinished, recovery_automations, tend_runs
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.events import Reader
from trnflow.tasks.system.redaction import scrub


def client(**folders: Path) -> Any:
    """What a server answers that has a deployment of each project, in this folder."""
    deployments = [
        SimpleNamespace(
            name=project, job_variables={"env": {} if project == "trnflow" else {"TRNFLOW_PROJECT": project}},
            pull_steps=[{DIRECTORY: {"directory": str(folder)}}],
        )
        for project, folder in folders.items()
    ]  # fmt: skip
    return SimpleNamespace(read_deployments=lambda deployment_filter: deployments)


def test_the_first_checkout_of_a_server_is_the_project_trnflow_and_no_other_ever_is(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "my project (2)"
    assert new_project(client(), other) == "trnflow"
    assert new_project(client(trnflow=first), other) == "my-project-2-"
    taken = client(trnflow=first, **{"my-project-2-": first})
    assert new_project(taken, other).startswith("my-project-2--") and new_project(taken, other) != "my-project-2-"
    of_others = client(theirs=tmp_path / "theirs")
    assert new_project(of_others, tmp_path / "trnflow").startswith("trnflow-"), "the first one may be away for a while"
    assert project_of(client(trnflow=first, mine=other), other) == "mine" and project_of(client(), other) is None
    assert [one.name for one in replaced_by(client(trnflow=first, mine=other), first)] == ["mine"]
    assert (named("retrain", "trnflow"), named("retrain", "mine")) == ("retrain", "retrain-mine")


def test_a_later_project_has_its_own_names_and_work_pool_and_the_file_stays(tmp_path: Path) -> None:
    file, pool = tmp_path / "prefect.yaml", {"name": "local", "job_variables": {"env": {"A": "1"}}}
    document = {
        "name": "x",
        "deployments": [{"name": "retrain", "work_pool": pool}, {"name": "watch", "work_pool": {"name": "far"}}],
    }
    file.write_text(yaml.safe_dump(document))
    with project_file(file, document, "trnflow", "local") as same:
        assert same == file
    with project_file(file, document, "mine", "local") as written:
        retrain, watch = yaml.safe_load(written.read_text())["deployments"]
    assert retrain == {
        "name": "retrain-mine",
        "work_pool": {"name": "local-mine", "job_variables": {"env": {"A": "1", "TRNFLOW_PROJECT": "mine"}}},
    }
    assert (watch["name"], watch["work_pool"]["name"]) == ("watch-mine", "far"), "a pool of another's keeps its name"
    assert yaml.safe_load(file.read_text()) == document


def test_a_retrain_is_missed_after_one_and_a_half_of_its_longest_pause() -> None:
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

    def schedule(what: Any, *, active: bool = True, **parameters: str) -> Any:
        return SimpleNamespace(schedule=what, active=active, parameters=parameters)

    workdays = schedule(CronSchedule(cron="0 3 * * 1-5", timezone="UTC"))
    often = schedule(IntervalSchedule(interval=timedelta(hours=6)), recipe="other")
    weekly, off = schedule(CronSchedule(cron="0 3 * * 0", timezone="UTC")), schedule(often.schedule, active=False)
    schedules = [workdays, often, weekly, off]
    retrain: Any = SimpleNamespace(parameters={"recipe": "mine"}, paused=False, schedules=schedules)
    names: Any = {("mine",): "Mine", ("other",): "Other"}
    assert _pauses(retrain, names) == {"Mine": timedelta(days=3), "Other": timedelta(hours=6)}
    retrain.paused = True
    assert _pauses(retrain, names) == {}
    missed: Any = _did_not_run("Mine", timedelta(days=3), Block(uuid.uuid4(), "webhook", "trnflow"), "trnflow").trigger
    assert missed.within == timedelta(days=4.5) and missed.posture.value == "Proactive"


def test_an_automation_is_updated_where_it_changed_and_one_that_was_switched_off_stays_off() -> None:
    from prefect.events.schemas.automations import Automation

    wanted = _did_not_run("Mine", timedelta(days=3), Block(uuid.uuid4(), "webhook", "trnflow"), "trnflow")
    sent: list[Any] = []
    server: Any = SimpleNamespace(
        create_automation=sent.append, update_automation=lambda number, changed: sent.append((number, changed))
    )
    _put(server, wanted, None)
    assert sent.pop() == wanted
    present = Automation(id=uuid.uuid4(), **{**wanted.model_dump(exclude={"owner_resource"}), "enabled": False})
    _put(server, wanted, present)
    assert not sent, "Prefect would begin to count its time anew"
    _put(server, wanted.model_copy(update={"description": "another"}), present)
    ((number, changed),) = sent
    assert (number, changed.description, changed.enabled) == (present.id, "another", False)


def test_a_deploy_removes_what_its_project_no_longer_wants_and_nothing_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from prefect.events.schemas.automations import Automation

    some = _did_not_run("Mine", timedelta(days=3), Block(uuid.uuid4(), "webhook", "trnflow"), "mine")

    def present(name: str) -> Any:
        return Automation(id=uuid.uuid4(), **{**some.model_dump(exclude={"owner_resource"}), "name": name})

    names = [
        "trnflow: data changed", "trnflow other: retrained", "trnflow mine: old", "trnflow gone: retrained",
        "trnflow: silent runs are crashed",
    ]  # fmt: skip
    there = {name: present(name) for name in names}
    created: list[str] = []
    deleted: list[Any] = []
    server: Any = SimpleNamespace(
        read_automations=lambda automations: [*there.values()],
        create_automation=lambda wanted: created.append(wanted.name),
        update_automation=lambda number, changed: None,
        delete_automation=deleted.append,
    )
    forgotten: list[Any] = []
    monkeypatch.setattr(
        automations, "forget_addresses", lambda client, used, project: forgotten.append((used, project))
    )
    retrain: Any = SimpleNamespace(id=uuid.uuid4(), parameters={}, schedules=[], paused=False)
    shared = [each for each in recovery_automations() if "silent" in each.name]
    wanted, block = renew(server, retrain, {}, "off", shared, "mine", ["trnflow", "other", "mine"])
    assert created == ["trnflow mine: data changed"] and block is None and forgotten == [(None, "mine")]
    assert {*deleted} == {there["trnflow mine: old"].id, there["trnflow gone: retrained"].id}
    assert wanted == ["trnflow mine: data changed", "trnflow: silent runs are crashed"]


def test_events_of_a_later_project_start_its_own_retrain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNFLOW_PROJECT", "mine")
    event = data_changed({"recipe": "tiny", "data": "sha256:1"}, "recipes/tiny.yaml", ["train.seed=2"])
    assert event.resource.id == "trnflow.project.mine.recipe.tiny" and event.event == "trnflow.data.changed"
    assert event.payload == {"recipe": "recipes/tiny.yaml", "data": "sha256:1", "overrides": ["train.seed=2"]}
    retrain: Any = SimpleNamespace(id=uuid.uuid4(), parameters={}, schedules=[], paused=False)
    for project, wanted in (("mine", "trnflow.project.mine.recipe.*"), ("trnflow", "trnflow.recipe.*")):
        (started,) = _wanted(retrain, {}, None, project)
        found: Any = started
        assert found.trigger.match.root == {"prefect.resource.id": wanted}
        assert found.actions[0].deployment_id == retrain.id


def test_a_deployment_waits_for_its_schedules_first_run_unless_it_is_paused() -> None:
    """Flow runs that were started by hand, or that ended, are not the schedule's."""

    def deployment(name: str, *, paused: bool = False, active: bool = True) -> Any:
        return SimpleNamespace(
            id=uuid.uuid4(), name=name, paused=paused, schedules=[SimpleNamespace(active=active)] * (name != "without")
        )

    planned = deployment("planned")
    there = [
        planned, deployment("late"), deployment("paused", paused=True), deployment("off", active=False),
        deployment("without"),
    ]  # fmt: skip

    def runs(deployment_filter: Any, flow_run_filter: Any = None, limit: int = 0) -> list[Any]:
        is_planned = deployment_filter.id.any_ == [planned.id]
        states = flow_run_filter and [state.value for state in flow_run_filter.state.type.any_]
        return [object()] if is_planned or states != ["SCHEDULED"] else []

    server: Any = SimpleNamespace(read_deployments=lambda deployment_filter: there, read_flow_runs=runs)
    assert deploy._unscheduled(server, [each.name for each in there]) == ["late"]


def test_a_deployment_keeps_its_own_tags_and_variables_beside_those_of_trnflow() -> None:
    sent: dict[Any, Any] = {}
    server: Any = SimpleNamespace(update_deployment=lambda number, changed: sent.update({number: changed}))
    mine: Any = SimpleNamespace(id=1, tags=["mine"], job_variables={"env": {"A": "1"}, "working_dir": "/x"})
    ready: Any = SimpleNamespace(id=2, tags=["trnflow"], job_variables={"env": dict(recovery.HEARTBEATS)})
    deploy._mark(server, [mine, ready])
    assert list(sent) == [1] and sent[1].tags == ["mine", "trnflow"]
    assert sent[1].job_variables == {"env": {"A": "1", **recovery.HEARTBEATS}, "working_dir": "/x"}


def test_each_crash_is_reported_once() -> None:
    crash = CrashedRun(uuid.uuid4(), "run", 4, datetime.now(UTC), "tiny.yaml", [])
    again = CrashedRun(crash.id, "run", 4, datetime.now(UTC), "tiny.yaml", [])
    later = CrashedRun(crash.id, "run", 5, crash.crashed, "tiny.yaml", [])
    other = CrashedRun(uuid.uuid4(), "run", 4, crash.crashed, "tiny.yaml", [])
    assert again.event_id == crash.event_id and len({crash.event_id, later.event_id, other.event_id}) == 3


def test_a_crash_is_what_the_flow_run_says() -> None:
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import Crashed

    given = {"recipe": "tiny.yaml", "overrides": ["train.seed=2"]}
    run = FlowRun(flow_id=uuid.uuid4(), name="old-crow", state=Crashed(), parameters=given, run_count=4)
    assert run.state is not None
    wanted = CrashedRun(run.id, "old-crow", 4, run.state.timestamp, "tiny.yaml", ["train.seed=2"])
    assert _crashed_run(run) == wanted
    assert _crashed_run(run.model_copy(update={"parameters": {"recipe": "tiny.yaml"}})).overrides == []


def test_crashes_of_the_last_day_that_nobody_reported_are_to_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import Crashed

    ours, theirs = (
        SimpleNamespace(id=uuid.uuid4(), job_variables={"env": env}) for env in ({}, {"TRNFLOW_PROJECT": "x"})
    )

    def run(name: str, *, hours: float = 1.0, starts: int = 4, of: Any = ours) -> FlowRun:
        state = Crashed(timestamp=datetime.now(UTC) - timedelta(hours=hours))
        return FlowRun(flow_id=of.id, name=name, state=state, run_count=starts, deployment_id=of.id)

    runs = [run("new"), run("told"), run("old", hours=25), run("again", starts=3), run("theirs", of=theirs)]
    told = _crashed_run(runs[1]).event_id

    def request(method: str, path: str, json: Any) -> Any:
        return SimpleNamespace(json=lambda: {"events": [{}] if json["filter"]["id"]["id"] == [str(told)] else []})

    client: Any = SimpleNamespace(
        read_deployments=lambda: [ours, theirs], read_flow_runs=lambda **asked: runs, request=request
    )
    monkeypatch.setattr(crashed_runs, "connected", lambda: nullcontext(client))
    monkeypatch.delenv("TRNFLOW_PROJECT", raising=False)
    assert [each.name for each in unreported_crashes(3)] == ["new"]


@pytest.mark.parametrize(
    ("flow", "starts", "hours", "left"),
    [
        ("retrain", 1, 1, True), ("retrain", 3, 23, True), ("retrain", 4, 1, False), ("retrain", 0, 1, False),
        ("retrain", 3, 25, False), ("retrain", 3, 0, False), ("watch", 1, 1, False),
    ],
)  # fmt: skip
def test_a_crashed_run_is_scheduled_again_three_times_within_a_day(
    flow: str, starts: int, hours: int, left: bool
) -> None:
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import Crashed

    options = signature(tend_runs).parameters
    state = Crashed(timestamp=datetime.now(UTC) - timedelta(hours=hours))
    run = FlowRun(flow_id=uuid.uuid4(), state=state, run_count=starts, deployment_id=uuid.uuid4())
    assert _is_left(run, flow, options["left"].default, options["times"].default) == left
    by_hand = run.model_copy(update={"deployment_id": None})  # nobody would take it
    assert not _is_left(by_hand, flow, options["left"].default, options["times"].default)
    said = next(each for each in recovery_automations() if each.name == "trnflow: crashed runs are scheduled again")
    assert "at most 3 times" in str(said.description)


def test_a_flow_run_does_not_look_after_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import Cancelling, Running, Scheduled

    run = FlowRun(flow_id=uuid.uuid4(), state=Running())
    assert _is_unfinished(run) and _is_unfinished(FlowRun(flow_id=run.flow_id, state=Cancelling()))
    assert not _is_unfinished(FlowRun(flow_id=run.flow_id, state=Scheduled()))
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(run.id))
    assert not _is_unfinished(run)


def test_the_address_of_a_webhook_is_a_secret_and_so_is_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "https://hooks.example.com/services/T0ken-of-test-projects"
    monkeypatch.setenv(VARIABLE, address)
    assert take_setting() == address
    for said in (f"POST {address} failed", "no answer to POST /services/T0ken-of-test-projects"):
        assert "T0ken-of-test-projects" not in scrub(said)
    assert take_setting() is None, "the processes that are started do not see it"


@pytest.mark.parametrize(("kind", "action"), [("webhook", "call-webhook"), ("slack-webhook", "send-notification")])
def test_each_kind_of_block_is_told_in_its_way_of_retrains_and_of_those_that_are_missed(kind: str, action: str) -> None:
    from prefect.client.schemas.schedules import IntervalSchedule

    daily = SimpleNamespace(schedule=IntervalSchedule(interval=timedelta(days=1)), active=True, parameters={})
    retrain: Any = SimpleNamespace(id=uuid.uuid4(), parameters={"recipe": "mine"}, paused=False, schedules=[daily])
    made: Any = [*_wanted(retrain, {("mine",): "Mine"}, Block(uuid.uuid4(), kind, "team"), "trnflow")]  # type: ignore[dict-item]
    assert {each.name: each.actions[0].type for each in made} == {
        "trnflow: data changed": "run-deployment", "trnflow: retrained": action, "trnflow: Mine did not run": action,
    }  # fmt: skip


def test_a_block_that_sends_no_notifications_is_refused() -> None:
    def asked(kind: str, *capabilities: str) -> None:
        block = SimpleNamespace(id=uuid.uuid4(), block_schema=SimpleNamespace(capabilities=capabilities))
        client: Any = SimpleNamespace(read_block_document_by_name=lambda name, kind, include_secrets: block)
        check_block(client, f"{kind}/team")

    asked("webhook")
    asked("slack-webhook", "notify")
    with pytest.raises(ConfigError, match="the block s3-bucket/team sends no notifications"):
        asked("s3-bucket", "get-directory")


def test_a_flow_is_given_settings_without_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect stores the parameters of its flow runs."""
    from trnflow.flows import deployments

    given: dict[str, Any] = {}
    monkeypatch.setattr(deployments, "finetune", lambda **parameters: given.update(parameters))
    monkeypatch.setattr(logging, "raiseExceptions", True)  # so that it is set back
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    context: Any = SimpleNamespace()
    overrides = ["tracking.uri=https://me:hush@tracker.example", "train.epochs=2"]
    session: Any = call_flow("finetune", {"recipe": "demo"}, overrides, Reader(), context)
    assert (session.context, given["recipe"], given["overrides"][1]) == (context, "demo", "train.epochs=2")
    assert "hush" not in str(given) and "tracker.example" in given["overrides"][0]
