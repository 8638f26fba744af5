"""Run the pipeline in Prefect: a flow run for the whole, a task run for each stage.

`prefect.yaml` deploys the flows `finetune`, `prepare` and `retrain`. Their parameters are a recipe's name, overrides and
options. A stage found in the store appears as `Cached`. Each stage adds a table and a link to Prefect's page. Prefect
carries no data and caches nothing: stages exchange digests, and results lie in the store.
"""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelled, Completed

from flows.champions import retrain as retraining
from flows.champions.retrain import Retrained
from flows.display import report
from flows.display.progress import Log
from flows.finetune import DATA_STAGES, FINETUNE
from flows.recipes import recipe as settings
from flows.runner.call import Call, Outcome
from flows.runner.executor import Listener
from flows.runner.pipeline import Pipeline
from flows.runner.run import Options, Result, execute, new_run_id, open_store
from flows.runner.runner import Runner
from flows.services.mlflow_listener import Tracking
from flows.services.pages import pages
from flows.services.task_runners import task_runner
from tasks.artifact import Artifact, Meta
from tasks.errors import Interrupted, TrnflowError, unexpected
from tasks.store import Store
from tasks.system.redaction import hide, raisable, scrub, scrub_logs, scrubbed

HEALTH_SECONDS = 5.0
"""Timeout of the request that asks whether Prefect's server is healthy."""


@dataclass
class Session:
    """What the command line passes to the flow in addition to the flow's parameters, and the result that it gets back.

    Attributes:
        listeners: Listeners of the command line, such as its progress display.
        on_sigterm: The command line's handler of SIGTERM. The flow installs it in place of Prefect's, which would show the
            run as crashed.
        overrides: The overrides with their secret values. Prefect stores a flow's parameters, so those have no secrets.
            None: the flow's parameter is used.
        result: Set by the flow when the run has ended.
        retrained: Set by the flow `retrain` when it has ended.
    """

    listeners: tuple[Listener, ...] = ()
    on_sigterm: Any = None
    overrides: tuple[str, ...] | None = None
    result: Result | None = None
    retrained: Retrained | None = None


SESSION: ContextVar[Session] = ContextVar("session")


class Page:
    """Add artifacts (tables and links) to the page that Prefect shows of a run.

    The run goes on if Prefect's server does not answer: then no more artifacts are sent, and `lost` is True.
    """

    def __init__(self) -> None:
        self.lost = False

    def show(self, create: Callable[..., Any], **arguments: Any) -> None:
        """Call `create`, one of Prefect's functions that create an artifact, with these arguments, if the server answers.

        An error is logged as a warning, not raised.
        """
        if not self.answers():
            return
        try:
            create(**arguments)
        except (httpx.HTTPError, PrefectHTTPStatusError) as error:
            get_run_logger().warning("Prefect's server refused an artifact: %s", error)

    def answers(self) -> bool:
        """Ask the server whether it is healthy, and return the answer. After the first failure, return False without
        asking.
        """
        if not self.lost:
            with get_client(sync_client=True, httpx_settings={"timeout": HEALTH_SECONDS}) as client:
                self.lost = client.api_healthcheck() is not None
        return not self.lost


class PrefectRunner(Runner):
    """A `Runner` in which each stage is a Prefect task run.

    A task run waits for those of the stages whose artifacts it reads, so Prefect draws the real dependencies.
    """

    def __init__(self, *arguments: Any, page: Page, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.page = page
        self._states: dict[str, State[Any]] = {}

    def run_or_reuse(self, call: Call, outcome: Outcome | None) -> Outcome:
        settled: list[Outcome] = []

        @task(name=call.name, task_run_name=call.name, cache_policy=NO_CACHE, persist_result=False)
        def run_stage() -> Any:
            try:
                settled.append(Runner.run_or_reuse(self, call, outcome))
            except Exception as error:  # Prefect keeps what is raised, and what caused it
                raise raisable(error) from None
            self._show(settled[0])
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

    def _show(self, outcome: Outcome) -> None:
        """Show the stage's artifact on Prefect's page."""
        if outcome.artifact is None:
            return
        key, digest = outcome.stage.replace("_", "-"), outcome.artifact.digest
        table, said = _describe(outcome, outcome.artifact), f"{outcome.stage}: {outcome.action}"
        self.page.show(create_markdown_artifact, markdown=table, key=key, description=said)
        self.page.show(
            create_link_artifact, link=scrub(self.store.link(digest)), link_text=digest, key=f"{key}-manifest"
        )


class PrefectLog(Listener):
    """Write a stage's messages (warnings, information, lines of progress) to the log of its Prefect task run."""

    def __init__(self) -> None:
        self._log: Log | None = None

    def stage_started(self, call: Call, key: str) -> None:
        self._end()
        logger = get_run_logger()  # the thread that writes the lines has no run of its own
        self._log = Log(lambda text: logger.info(text.strip()))
        self._log.begin(call.name)

    def event(self, stage: str, event: Meta) -> None:
        for level in ("warn", "info"):
            if level in event:
                get_run_logger().log(logging.WARNING if level == "warn" else logging.INFO, event[level])
        if self._log is not None:
            self._log.event(event)

    def stage_ended(self, outcome: Outcome) -> None:
        self._end()
        said = report.highlights(outcome)
        get_run_logger().info("%s: %s in %s s %s", outcome.stage, outcome.action, report.seconds(outcome.seconds), said)

    def stage_failed(self, stage: str, error: BaseException) -> None:
        self._end()

    def _end(self) -> None:
        if self._log is not None:
            self._log.end()
            self._log = None


@flow(name="finetune", flow_run_name="{recipe}", persist_result=False)
def finetune(
    recipe: str = "demo",
    overrides: list[str] | None = None,
    until: str | None = None,
    force: list[str] | None = None,
    offline: bool = False,
) -> State[Any] | None:
    """Run a recipe (Prefect flow).

    Args:
        recipe: The recipe's name.
        overrides: Settings that replace the recipe's, such as `train.learning_rate=3e-5`.
        until: The stage after which to stop; None for the last.
        force: Stages to run even if their artifacts are in the store.
        offline: Whether to make no requests to a model or data hub.
    """
    return _run(recipe, overrides or [], Options(until, frozenset(force or ()), offline))


@flow(name="prepare", flow_run_name="{recipe}", persist_result=False)
def prepare(recipe: str = "demo", overrides: list[str] | None = None, offline: bool = False) -> State[Any] | None:
    """Run the data stages of a recipe (Prefect flow), for example on a machine without an accelerator.

    A later `finetune` with the same store uses their results. The parameters are as for `finetune`.
    """
    return _run(recipe, overrides or [], Options(DATA_STAGES[-1], offline=offline))


@flow(name="retrain", flow_run_name="{recipe}", persist_result=False)
def retrain(
    recipe: str = "demo", overrides: list[str] | None = None, offline: bool = False, wait: bool = False
) -> State[Any] | None:
    """Train a recipe again on a schedule (Prefect flow) if its data, code or settings changed, and promote a better model.

    If nothing changed, the flow ends at once as `Unchanged`.

    Args:
        recipe: A name in conf/ or the path of a YAML file.
        overrides: Settings as `section.setting=value`, which win over the recipe's.
        offline: Whether to make no requests to a model or data hub.
        wait: Whether to wait while another retrain of the recipe is under way; otherwise end at once as `Unchanged`.
    """
    return _raisable(_retrain, recipe, overrides or [], offline, wait)


def _run(name: str, overrides: Iterable[str], options: Options) -> State[Any] | None:
    return _raisable(_run_recipe, name, overrides, options)


def _raisable(function: Callable[..., State[Any] | None], *arguments: Any) -> State[Any] | None:
    """Call a function; what it raises is made safe to keep."""
    scrub_logs()
    try:
        return function(*arguments)
    except Exception as error:  # Prefect keeps what is raised, and what caused it
        raise raisable(error) from None


def _run_recipe(name: str, overrides: Iterable[str], options: Options) -> State[Any] | None:
    session, recipe, store = _opened(name, overrides)
    page = Page()
    session.result = _execute(recipe, store, options, FINETUNE, session, page)
    return _ended(session.result.error)


def _retrain(name: str, overrides: Iterable[str], offline: bool, wait: bool) -> State[Any] | None:
    try:
        session, recipe, store = _opened(name, overrides)
    except TrnflowError as error:  # the recipe can't be read, so its name is that of the file
        _emit_failure(Path(name).stem, error)
        raise
    page = Page()

    def train(fixed: settings.Recipe, pipeline: Pipeline) -> Result:
        session.result = _execute(fixed, store, Options(offline=offline), pipeline, session, page)
        return session.result

    listeners = (*session.listeners, PrefectLog())
    try:
        done = session.retrained = retraining.retrain(recipe, store, listeners, train, offline=offline, wait=wait)
    except Exception as error:  # an error of this program, or of the machine
        _emit_failure(recipe.name, error)
        raise
    if done.changed:
        table = f"```json\n{json.dumps(hide(done.to_json()), indent=1)}\n```\n"
        page.show(create_markdown_artifact, markdown=table, key="retrain", description=scrub(done.why))
    get_run_logger().info("%s: %s", done.outcome, scrub(done.why))
    _emit(recipe.name, done)
    return _ended(done.error) or Completed(name=done.outcome.capitalize(), message=scrub(done.why))


def _emit_failure(name: str, error: Exception) -> None:
    known = scrubbed(error if isinstance(error, TrnflowError) else unexpected(error))
    _emit(name, Retrained(name, None, False, known.message, error=known))


def _emit(name: str, done: Retrained) -> None:
    """Emit the event `trnflow.retrain.promoted`, `kept`, `stopped`, `failed` or `unchanged` about a recipe; none of a
    retraining that was interrupted. The payload is the JSON of `trnflow retrain`."""
    if not isinstance(done.error, Interrupted):
        resource = {"prefect.resource.id": f"trnflow.recipe.{name}", "prefect.resource.name": name}
        emit_event(f"trnflow.retrain.{done.outcome}", resource, payload=hide(done.to_json()))


def _opened(name: str, overrides: Iterable[str]) -> tuple[Session, settings.Recipe, Store]:
    """Return the session, the recipe, and its store made ready."""
    session = SESSION.get(Session())
    if session.on_sigterm is not None:
        signal.signal(signal.SIGTERM, session.on_sigterm)
    recipe = settings.load(name, overrides if session.overrides is None else session.overrides)
    store = open_store(recipe)
    store.prepare()
    return session, recipe, store


def _ended(error: TrnflowError | None) -> State[Any] | None:
    """Return the state of a flow that was interrupted, or None if it completed; else raise its error."""
    if isinstance(error, Interrupted):
        return Cancelled(message=error.message)
    if error is not None:
        raise error
    return None


def _execute(
    recipe: settings.Recipe, store: Store, options: Options, pipeline: Pipeline, session: Session, page: Page
) -> Result:
    """Run the pipeline's stages as tasks of the present flow run, and show the run on its page."""
    run = new_run_id()
    with ExitStack() as stack:
        tracking = stack.enter_context(Tracking(recipe, store.home, run))
        part_maker = stack.enter_context(task_runner(recipe.task_runner))
        listeners = (*session.listeners, PrefectLog(), tracking)
        runner_type = partial(PrefectRunner, page=page)
        result = execute(
            recipe,
            store,
            options,
            pipeline,
            run=run,
            listeners=listeners,
            runner_type=runner_type,
            part_maker=part_maker,
        )
        result = tracking.finish(result)
    said = f"{recipe.name}: stages and key figures"
    mlflow = pages(store.home, recipe.tracking, recipe.folder("tracking.uri"))[1] if recipe.tracking.enabled else None
    page.show(create_markdown_artifact, markdown=_table(result) + _where(result, mlflow), key="run", description=said)
    result.prefect_lost = page.lost
    for note in result.notes:
        get_run_logger().warning(scrub(note))
    return result


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


def _where(result: Result, mlflow: str | None) -> str:
    """Say where the run's page and its evaluation are. A browser opens no local file from Prefect's page, so the address is
    MLflow's, which has the evaluation of the run that made it. mlflow: the line that names the address; None when the run is
    not recorded there."""
    made = any(outcome.stage == "evaluate_model" and outcome.action == "ran" for outcome in result.outcomes)
    there = f", and the run in MLflow has the evaluation's `report.html` ({mlflow})" if made and mlflow else ""
    return f"\n`trnflow report {result.run}` writes the page of this run{there}.\n"
