"""The Prefect flows: a run is a flow run, each of its stages a task run.

`prefect.yaml` deploys them. The task run of a hit ends as `Cached`; each stage adds a table and a link to its page.
Prefect carries no data and caches nothing: results lie in the store. It shows the flows' docstrings.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.events import emit_event
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed
from pydantic import Field

from trnflow.flows.finetune import DATA_STAGES
from trnflow.flows.finetune import finetune as finetune_graph
from trnflow.flows.recipes.names import FILES
from trnflow.flows.recipes.sent import load_sent
from trnflow.flows.retraining import retrain as retraining
from trnflow.flows.retraining import watch as watching
from trnflow.flows.retraining.change import RetrainReason
from trnflow.flows.retraining.crashed import report_crashed
from trnflow.flows.retraining.firings import note_firing
from trnflow.flows.retraining.outcome import Retrained
from trnflow.flows.runner.context import RunContext, context_of, open_store
from trnflow.flows.runner.graph import Graph
from trnflow.flows.runner.mlflow_log import trackers
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import Result
from trnflow.flows.runner.run import run as run_graph
from trnflow.flows.services.events import RETRAINED, data_changed, recipe_resource, send_events
from trnflow.flows.services.pages import pages
from trnflow.flows.services.recovery import end_unbegun_runs, tend_runs
from trnflow.flows.services.run_view.artifacts import Page, retrain_table, run_table, where_pages
from trnflow.flows.services.run_view.plan import PlanPage, RunName
from trnflow.flows.services.run_view.stage_tasks import PrefectLog, StageTasks
from trnflow.flows.services.run_view.sweep import SweepPage, sweep_summary
from trnflow.flows.services.task_runners import task_runner
from trnflow.flows.sweeps import sweep as sweeping
from trnflow.flows.sweeps.plan import read_plan, refuse_fixed
from trnflow.flows.sweeps.trial import direct_runs
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, Interrupted, TrnflowError, unexpected
from trnflow.tasks.events import EventLog, Reader
from trnflow.tasks.sources.resolver import Answers
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.redaction import hide_secrets, raisable, scrub, scrub_all, scrub_logs, scrubbed


@dataclass
class Session:
    """What the command line passes to a flow beside its parameters, and gets back.

    Attributes:
        context: What the command has opened, with the plan of its run; None: the flow opens its own.
        readers: Of the run's events, such as the progress display.
        on_sigterm: The command's handler of SIGTERM; with Prefect's the run would show as crashed.
        change: What the command `retrain` has found.
        result: Set by the flow when the run has ended.
        retrained: Set by the flow `retrain` when it has ended.
    """

    context: RunContext | None = None
    readers: tuple[Reader, ...] = ()
    on_sigterm: Any = None
    change: RetrainReason | None = None
    result: Result | None = None
    retrained: Retrained | None = None


SESSION: ContextVar[Session] = ContextVar("session")


def _run_name() -> str:
    """Return the first name of a flow run: its recipe's, also where that is given by a file's path."""
    recipe = str(flow_run.parameters["recipe"])
    return Path(recipe).stem if recipe.endswith(FILES) else recipe


@flow(name="finetune", flow_run_name=_run_name, persist_result=False)
def finetune(
    recipe: str = "demo",
    overrides: list[str] | None = None,
    until: str | None = None,
    force: list[str] | None = None,
    offline: bool = False,
) -> State[Any] | None:
    """Prefect flow: run the stages of a recipe. Stages whose artifacts are in the store already are not run
    again.

    Args:
        recipe: The name of a recipe in the folder conf/, or the path of a YAML file.
        overrides: Settings that replace the recipe's, such as `train.learning_rate=3e-5`.
        until: The stage after which to stop; None for the last.
        force: Stages to run even if their artifacts are in the store.
        offline: Whether to make no requests to a model or data hub.

    Returns:
        None, which Prefect shows as completed, or the state `Cancelled` if the run was interrupted.

    Raises:
        TrnflowError: The run failed.
    """
    return _raisable(_run, recipe, overrides or [], Options(until, frozenset(force or ()), offline))


@flow(name="prepare", flow_run_name=_run_name, persist_result=False)
def prepare(recipe: str = "demo", overrides: list[str] | None = None, offline: bool = False) -> State[Any] | None:
    """Run the data stages of a recipe, `load_data` to `pack_chunks` (Prefect flow), for example on a machine without an
    accelerator.

    A later `finetune` with the same store uses their results. recipe: the name of a recipe in the folder conf/, or the
    path of a YAML file; overrides: settings as `section.setting=value`; offline: whether to make no requests to a model
    or data hub. Returns None, or the state `Cancelled` if the run was interrupted.
    """
    return _raisable(_run, recipe, overrides or [], Options(DATA_STAGES[-1], offline=offline))


@flow(name="retrain", flow_run_name=_run_name, persist_result=False)
def retrain(
    recipe: str = "demo", overrides: list[str] | None = None, offline: bool = False, wait: bool = False
) -> State[Any] | None:
    """Prefect flow: train a recipe again if its data, code or settings changed, and promote the new model if it is
    better.

    The change is looked for since the recipe's newest judged model: the last one that was compared with the champion or
    became the first champion. The new model is compared with the champion on frozen rows, and becomes the champion if it
    is clearly better. If
    nothing changed, the flow ends at once as `Unchanged`. The flow emits a Prefect event that says how it ended, such
    as `trnflow.retrain.promoted`. `prefect.yaml` gives the flow a schedule.

    Args:
        recipe: A name in conf/ or the path of a YAML file.
        overrides: Settings as `section.setting=value`, which win over the recipe's.
        offline: Whether to make no requests to a model or data hub.
        wait: Whether to wait while another retrain of the recipe is under way; otherwise end at once as `Unchanged`.
    """
    return _raisable(_retrain, recipe, overrides or [], offline, wait)


@flow(name="watch", flow_run_name=_run_name, persist_result=False)
def watch(
    recipe: str = "demo",
    overrides: list[str] | None = None,
    every: float = watching.EVERY_SECONDS,
    offline: bool = False,
) -> State[Any] | None:
    """Compare a recipe's data once with that of its newest retrain, and report a difference (Prefect flow).

    If the data differs and a retrain is due, the flow emits the event `trnflow.data.changed`, on which an automation of
    Prefect starts the deployment `retrain`. Before the comparison, the flow has those flow runs marked as crashed whose
    process died, and schedules crashed runs again. The name of the flow's final state is the outcome, such as `Changed`
    or `Unchanged`; `trnflow.flows.retraining.watch.Look` lists all outcomes. A Prefect schedule repeats the flow.

    Args:
        recipe: A name in conf/ or the path of a YAML file.
        overrides: Settings as `section.setting=value`, which win over the recipe's.
        every: The seconds between two runs of the schedule. New data counts as changed only if a run that is at least
            half as many seconds later finds the same data.
        offline: Whether to make no requests to a data hub.
    """
    return _raisable(_watch, recipe, overrides or [], every, offline)


@flow(name="sweep", flow_run_name=_run_name, persist_result=False)
def sweep(
    recipe: str = "demo",
    vary: list[str] | None = None,
    overrides: list[str] | None = None,
    trials: Annotated[int, Field(ge=1)] | None = None,
    metric: str | None = None,
    direction: Literal["min", "max"] | None = None,
    sampler: Literal["tpe", "random", "grid"] | None = None,
    parallel: Annotated[int, Field(ge=1)] | None = None,
    name: str | None = None,
    offline: bool = False,
) -> State[Any] | None:
    """Train a recipe several times with varied settings (trials), then run all its stages with the settings of the best
    trial (Prefect flow).

    Each parameter from `trials` on that is None is taken from the recipe's section `sweep`. If the flow was killed, the
    next run with the same study keeps the trials that ended and resumes the others.

    Args:
        recipe: A name in conf/ or the path of a YAML file.
        vary: Ranges and choices, such as `train.learning_rate=1e-5..1e-4:log` or `train.global_batch=16,32`. They add to
            those of the recipe's section `sweep`, or replace them.
        overrides: Settings as `section.setting=value` that all trials have in common.
        trials: The number of trials.
        metric: The metric of stage `train` by which trials are compared.
        direction: Whether a low or a high metric is good.
        sampler: How the settings of a trial are chosen.
        parallel: The number of trials at a time.
        name: The name of the study, by which Optuna keeps the trials.
        offline: Whether to make no requests to a model or data hub.

    Returns:
        A completed state whose message sums up the trials, or the state `Cancelled` if the sweep was interrupted.
    """
    options = {
        "trials": trials, "metric": metric, "direction": direction, "sampler": sampler, "parallel": parallel, "name": name,
    }  # fmt: skip
    return _raisable(_sweep, recipe, vary or [], overrides or [], options, offline)


def _raisable(function: Callable[..., State[Any] | None], *arguments: Any) -> State[Any] | None:
    """Call a function; remove secrets from an error that it raises, since Prefect stores errors."""
    scrub_logs()
    try:
        # of a task run with tags Prefect asks for their concurrency limits, and fails it if the server has gone away
        with TagsContext(current_tags=set()):
            return function(*arguments)
    except Exception as error:  # Prefect keeps what is raised, and what caused it
        raise raisable(error) from None


def _run(name: str, overrides: Iterable[str], options: Options) -> State[Any] | None:
    session, context = _opened(name, overrides, offline=options.offline)
    log = EventLog(*session.readers, PrefectLog(), *trackers(context.recipe, context.store))
    session.result = _execute(finetune_graph(context.recipe), context, options, log, Page())
    return _ended(session.result.error)


def _retrain(name: str, overrides: Iterable[str], offline: bool, wait: bool) -> State[Any] | None:
    with suppress(ConfigError):  # a retrain goes on without Prefect's server
        end_unbegun_runs()
    try:
        session, context = _opened(name, overrides, offline=offline)
        delivery = trackers(context.recipe, context.store)
    except TrnflowError as error:  # the recipe can't be read, so its name is that of the file
        _emit_failure(Path(name).stem, error)
        note_firing(home_folder(), Path(name).stem, "failed", error.message)
        raise
    page, recipe = Page(), context.recipe

    def train(training: RunContext, graph: Graph) -> Result:
        session.result = _execute(graph, training, Options(offline=offline), log, page)
        return session.result

    run_name = RunName(page, recipe.name)
    log = EventLog(*session.readers, PrefectLog(), run_name, *delivery)
    try:
        done = session.retrained = retraining.retrain(context, log, train, wait=wait, change=session.change)
    except Exception as error:  # an error of this program, or of the machine
        _emit_failure(recipe.name, error)
        raise
    if done.changed:
        table = retrain_table(scrub_all(hide_secrets(done.to_json())))
        page.show(create_markdown_artifact, markdown=table, key="retrain", description=f"{done.recipe} {done.outcome}")
    elif not isinstance(done.error, Interrupted):
        run_name.say(done.outcome)
    get_run_logger().info("%s: %s", done.outcome, scrub(done.why))
    told = session.result.notes if session.result else []
    for note in done.notes:
        if note not in told:
            get_run_logger().warning(scrub(note))
    for one in filter(None, (done.earlier, done)):
        _emit(recipe.name, one)
    return _ended(done.error) or Completed(name=done.outcome.capitalize(), message=scrub(done.why))


def _watch(name: str, overrides: list[str], every: float, offline: bool) -> State[Any]:
    tend_runs()
    report_crashed()
    _, context = _opened(name, overrides, offline=offline)
    recipe, store = context.recipe, context.store
    found = watching.look(recipe, store, every=every, offline=offline)
    if found.outcome == "changed":
        send_events([data_changed(found.to_json(), name, overrides)])
        watching.note_announced(found, store)
    get_run_logger().info("%s: %s", found.outcome, scrub(found.why))
    return Completed(name=found.outcome.capitalize(), message=scrub(found.why))


def _sweep(named: str, vary: list[str], overrides: list[str], options: Meta, offline: bool) -> State[Any] | None:
    refuse_fixed(vary)
    given = [f"sweep.{option}={json.dumps(value)}" for option, value in options.items() if value is not None]
    plan = read_plan(named, [*overrides, *vary, *given])
    plan.check_sent()
    page = Page()
    RunName(page, plan.recipe.name).say(f"sweep {plan.name}")
    shown, answers = SweepPage(page), Answers()
    try:
        content, result = sweeping.sweep(
            plan,
            direct_runs(answers),
            shown.say,
            readers=(PrefectLog(),),
            offline=offline,
            wait=True,
            show=shown.show,
            answers=answers,
        )
    except Interrupted as error:
        return _ended(error)
    said = scrub(sweep_summary(content))
    get_run_logger().info("%s", said)
    return _ended(result.error if result else None) or Completed(message=said)


def _emit_failure(name: str, error: Exception) -> None:
    known = scrubbed(unexpected(error))
    _emit(name, Retrained(name, None, False, known.message, error=known))


def _emit(name: str, done: Retrained) -> None:
    """Emit the event `trnflow.retrain.OUTCOME` with what `trnflow retrain --json` prints; none if interrupted."""
    if not isinstance(done.error, Interrupted):
        emit_event(f"{RETRAINED}{done.outcome}", recipe_resource(name), payload=hide_secrets(done.to_json()))


def _opened(name: str, overrides: Iterable[str], *, offline: bool) -> tuple[Session, RunContext]:
    """Return the command line's session and context, else new ones; install the session's handler of SIGTERM."""
    session = SESSION.get(Session())
    if session.on_sigterm is not None:
        signal.signal(signal.SIGTERM, session.on_sigterm)
    if session.context is not None:
        return session, session.context
    recipe = load_sent(name, overrides)
    return session, context_of(recipe, open_store(recipe), offline=offline, create=True)


def _ended(error: TrnflowError | None) -> State[Any] | None:
    """Return the state of an interrupted flow, None of a completed one; else raise its error."""
    if isinstance(error, Interrupted):
        return Cancelled(message=error.message)
    if error is not None:
        raise error
    return None


def _execute(graph: Graph, context: RunContext, options: Options, log: EventLog, page: Page) -> Result:
    """Run a graph's stages as tasks of the present flow run, and show its tables on Prefect's page of it."""
    recipe, store = context.recipe, context.store
    with task_runner(recipe.task_runner) as part_maker, log.also(PlanPage(page)):
        running = context.for_run(log, part_maker=part_maker)
        result = run_graph(graph, running, options, around=StageTasks(page, store))
    title = f"{recipe.name}: stages and key figures"
    mlflow = pages(store.home, recipe.tracking, recipe.folder("tracking.uri"))[1] if recipe.tracking.enabled else None
    table = run_table(result) + where_pages(result, mlflow)
    page.show(create_markdown_artifact, markdown=table, key="run", description=title)
    result.prefect_lost = page.lost
    for note in result.notes:
        get_run_logger().warning(scrub(note))
    return result
