"""The Prefect seam: the same pipeline, with a flow run around it and a task run for each stage.

`finetune`, `prepare` and `retrain` are what `prefect.yaml` deploys; their parameters are a recipe's name and overrides.
Cached stages show as `Cached`; what a stage made shows as an artifact with a table and a link. Prefect carries no data:
stages exchange digests, and the cache is the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows import report, settings
from flows.call import Call, Outcome
from flows.finetune import DATA_STAGES
from flows.run import Options, Result, execute, new_run_id, open_store
from flows.stage import Listener, Runner
from flows.task_runners import task_runner_workers
from flows.track import Tracking
from tasks.artifact import Artifact, Meta
from tasks.store import Store


@dataclass
class Session:
    """What the command line hands to the flow beside its parameters, and gets back."""

    listeners: tuple[Listener, ...] = ()
    result: Result | None = None


SESSION: ContextVar[Session] = ContextVar("session")


class PrefectRunner(Runner):
    """Each stage is a task run that waits for those whose outputs it takes: the drawn graph is the real one."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._states: dict[str, State[Any]] = {}

    def settle(self, call: Call, outcome: Outcome | None) -> Outcome:
        settled: list[Outcome] = []

        @task(name=call.name, task_run_name=call.name, cache_policy=NO_CACHE, persist_result=False)
        def run_stage() -> Any:
            settled.append(outcome or self.execute(call))
            _show(self.store, settled[0])
            cached = settled[0].action == "hit"  # on record, or made meanwhile by another run
            return Completed(name="Cached", message=settled[0].why) if cached else settled[0].stage

        state = run_stage(return_state=True, wait_for=self._upstream(call))
        self._states[call.name] = state
        if state.is_completed():
            return settled[0]
        state.result()
        raise RuntimeError(f"the task run of {call.name} ended as {state.name}")

    def _upstream(self, call: Call) -> list[State[Any]]:
        digests = {item.digest for item in call.inputs.values() if isinstance(item, Artifact)}
        made = [name for name, done in self.outcomes.items() if done.artifact and done.artifact.digest in digests]
        wanted = (*made, *(needed.name for needed in call.after.values()))
        return [
            self._states[name] for name in wanted if name in self._states
        ]  # a hit wants nothing of a deferred stage


class PrefectLog(Listener):
    """What a stage says, in the flow run's log."""

    def event(self, stage: str, event: Meta) -> None:
        for level in ("warn", "info"):
            if level in event:
                get_run_logger().log(logging.WARNING if level == "warn" else logging.INFO, event[level])
        if "metrics" in event:
            values = " ".join(f"{name} {report.number(value)}" for name, value in event["metrics"]["values"].items())
            get_run_logger().info("step %s %s", event["metrics"]["step"], values)

    def stage_ended(self, outcome: Outcome) -> None:
        said = report.highlights(outcome)
        get_run_logger().info("%s: %s in %s s %s", outcome.stage, outcome.action, report.seconds(outcome.seconds), said)


@flow(name="finetune", flow_run_name="{recipe}", persist_result=False)
def finetune(
    recipe: str = "demo",
    overrides: list[str] | None = None,
    until: str | None = None,
    force: list[str] | None = None,
    offline: bool = False,
) -> None:
    """Run a recipe. overrides: such as `train.learning_rate=3e-5`; until: stop after this stage; force: stages to run again."""
    _run(recipe, overrides or [], Options(until, frozenset(force or ()), offline))


@flow(name="prepare", flow_run_name="{recipe}", persist_result=False)
def prepare(recipe: str = "demo", overrides: list[str] | None = None, offline: bool = False) -> None:
    """The data stages alone, for a machine without an accelerator; a later `finetune` on the same store goes on from them."""
    _run(recipe, overrides or [], Options(DATA_STAGES[-1], offline=offline))


@flow(name="retrain", flow_run_name="{recipe}", persist_result=False)
def retrain(recipe: str = "demo", overrides: list[str] | None = None) -> None:
    """Resolve the sources anew and run what their change asks for; when nothing changed every stage hits and it ends at once."""
    _run(recipe, overrides or [], Options())


def _run(name: str, overrides: Iterable[str], options: Options) -> None:
    session = SESSION.get(Session())
    recipe = settings.load(name, overrides)
    store = open_store(recipe)
    store.prepare()
    run = new_run_id()
    with ExitStack() as stack:
        tracking = stack.enter_context(Tracking(recipe, store.home, run))
        workers = stack.enter_context(task_runner_workers(recipe.task_runner, store))
        listeners = (*session.listeners, PrefectLog(), tracking)
        result = execute(
            recipe, store, options, run=run, listeners=listeners, runner_type=PrefectRunner, workers=workers
        )
        session.result = tracking.finish(result)
    create_markdown_artifact(_table(result), key="run", description=f"{recipe.name}: stages and key figures")
    for note in result.notes:
        get_run_logger().warning(note)
    if result.error is not None:
        raise result.error


def _show(store: Store, outcome: Outcome) -> None:
    """The stage's artifact on Prefect's pages."""
    if outcome.artifact is None:
        return
    key = outcome.stage.replace("_", "-")
    create_markdown_artifact(
        _describe(outcome, outcome.artifact), key=key, description=f"{outcome.stage}: {outcome.action}"
    )
    create_link_artifact(
        link=store.link(outcome.artifact.digest), link_text=outcome.artifact.digest, key=f"{key}-manifest"
    )


def _describe(outcome: Outcome, artifact: Artifact) -> str:
    rows = {
        "action": outcome.action, "key": outcome.key, "artifact": artifact.digest, "kind": artifact.kind,
        "files": len(artifact.files), "bytes": artifact.size, **outcome.metrics, **outcome.figures,
    }  # fmt: skip
    body = "\n".join(f"| {name} | {report.number(value)} |" for name, value in rows.items())
    return f"| {outcome.stage} | |\n|---|---|\n{body}\n"


def _table(result: Result) -> str:
    rows = [
        f"| {o.stage} | {o.action} | {report.seconds(o.seconds)} | {report.highlights(o)} |" for o in result.outcomes
    ]
    return "\n".join(["| stage | action | seconds | key figures |", "|---|---|---|---|", *rows, ""])
