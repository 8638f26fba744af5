"""The commands that run a recipe: `run`, and `prepare`, which ends with `pack_chunks`."""

from __future__ import annotations

import contextlib
import shlex
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.output import complete, emit, emit_json, exit_at_once, print_error, say, tell
from trnflow.flows.cli.rehearse_command import rehearse_before
from trnflow.flows.display import report
from trnflow.flows.display.progress import Progress
from trnflow.flows.finetune import DATA_STAGES, STAGES, finetune
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.sections import TrackingConfig
from trnflow.flows.runner.context import RunContext, make_plan, open_context
from trnflow.flows.runner.expected_time import expect_training
from trnflow.flows.runner.mlflow_log import trackers
from trnflow.flows.runner.plan import Options, Step
from trnflow.flows.runner.run import Result
from trnflow.flows.runner.run import run as run_graph
from trnflow.flows.runner.warm_parents import start_warm_parents
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.events import EventLog
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.redaction import scrub


def add_commands(sub: Any, online: ArgumentParser) -> None:
    stages = ArgumentParser(add_help=False, parents=[online])
    stages.add_argument(
        "--force", metavar="STAGE", action="append", default=[], help="run this stage although it is cached"
    )
    stages.add_argument("--direct", action="store_true", help="run without Prefect")
    everything = add_command(sub, "run", run, stages, "run a recipe; cached stages are not run again")
    everything.add_argument("--until", metavar="STAGE", help="stop after this stage")
    everything.add_argument(
        "--no-rehearse", action="store_true", help="do not rehearse a long run first (run.rehearse_above_minutes)"
    )
    everything.add_argument(
        "--detach",
        action="store_true",
        help="leave the other stages to a job: submit it (launch.kind), or print the command that runs it",
    )
    data = add_command(sub, "prepare", run, stages, "run the data stages alone; needs no accelerator")
    data.set_defaults(until=DATA_STAGES[-1], detach=False)


def run(options: Namespace) -> int:
    """Run what is not in the store, and print a table: by a Prefect flow, unless --direct is given or nothing is due."""
    if options.detach:
        return order(options)
    code, is_abandoned = _run(options)
    if is_abandoned:
        exit_at_once(code)
    return code


def _run(options: Namespace) -> tuple[int, bool]:
    """Return the exit code, and whether Prefect's threads must not hold up the exit."""
    what = Options(options.until, frozenset(options.force), options.offline)
    context = open_context(options.recipe, options.overrides, offline=options.offline)
    recipe, graph = context.recipe, finetune(context.recipe)
    what.check(graph)
    context.plan = make_plan(graph, context)
    context.plan.check_needs(what, here=context.environment)
    due = context.plan.due(what)
    if due and what.until not in DATA_STAGES:
        if not graph.elsewhere and (expected := expect_training(recipe, context.plan)):
            say(expected)
        fault = None if options.no_rehearse else rehearse_before(context, what)
        if fault is not None:
            print_error(fault, options)
            return 2, False
    if not due:
        log = EventLog(*trackers(recipe, context.store))  # a lost blob is found, and made, only now
        result = run_graph(graph, context.for_run(log), what)
    else:
        result = _run_stages(options, context, what, due)
    if result.error is not None:
        complete(result.error, options)
    if options.json:
        emit_json(result.to_json())
    else:
        _print_result(recipe, result, not due)
    return print_error(result.error, options) if result.error else 0, result.prefect_lost


def order(options: Namespace) -> int:
    """Run the stages before those of the job, and submit it, or print the command that runs it. Raises ConfigError, CodeError for
    what can't travel."""
    from trnflow.flows.jobs.order import carried_for, order_anew, write_order

    until, force = options.until or STAGES[-1], frozenset(options.force)
    context = open_context(options.recipe, options.overrides, offline=options.offline)
    graph = finetune(context.recipe)
    Options(until, force).check(graph)
    first = graph.elsewhere.stages[0] if graph.elsewhere else graph.until(DATA_STAGES[-1])[-1]
    before = graph.stages[: graph.stages.index(first) + (graph.elsewhere is None)]
    given = [name for name in before if name not in graph.deferred]
    if until in before:
        raise ConfigError(f"{until} runs here: a job begins behind {given[-1]}", "leave out --detach")
    # what can't travel is found out before rows are made
    if graph.elsewhere:
        graph.elsewhere.check(context)
    carried = None if graph.elsewhere else carried_for(context)
    options.until, options.force = given[-1], sorted(force.intersection(given))
    as_json, options.json = options.json, False
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        code, is_abandoned = _run(options)
    options.json = as_json
    if code == 0:
        what = Options(until, force.difference(given))
        plan = make_plan(graph, context)
        if not plan.due(what):
            emit(options, {"job": None, "uri": None}, f"nothing to order: {context.recipe.name} is done up to {until}")
        elif graph.elsewhere:
            uri, ticket = graph.elsewhere.submit(plan, context, what)
            where = f"{context.recipe.launch.kind} {ticket}" if ticket else "done already"
            document = {"job": uri.id, "uri": str(uri), "ticket": ticket}
            emit(options, document, f"job {uri.id}: {where}", f"    trnflow jobs {uri.id} --follow")
        else:
            assert carried is not None
            uri = write_order(context, plan, carried, given, until, what.force)
            order_anew(context.store, uri)
            command = f"    trnflow job {shlex.quote(str(uri))}"
            emit(options, {"job": uri.id, "uri": str(uri)}, f"job {uri.id}: on the machine that is to run it", command)
    if is_abandoned:
        exit_at_once(code)
    return code


def _run_stages(options: Namespace, context: RunContext, what: Options, due: list[Step]) -> Result:
    with Progress() as progress:
        if options.direct:
            return _run_directly(context, what, progress)
        from trnflow.flows.cli.prefect_run import call_flow, quiet, reach_server

        quiet()  # before the warm parents start, which compare the environment
        start_warm_parents(due, context)  # they import while this process imports Prefect
        if away := reach_server(context.store.home):
            return _run_without_prefect(context, what, progress, away)
        parameters = {
            "recipe": options.recipe,
            "until": what.until,
            "force": sorted(what.force),
            "offline": what.offline,
        }
        session = call_flow("finetune", parameters, options.overrides, progress, context)
        if isinstance(session, ConfigError):
            result = _run_without_prefect(context, what, progress, session)
            result.prefect_lost = True  # Prefect's threads, which still try to send, must not hold up the exit
            return result
        assert session.result is not None
        return session.result


def _run_without_prefect(context: RunContext, what: Options, progress: Progress, away: ConfigError) -> Result:
    warning = f"{away.message}; the run goes on without Prefect"
    say(f"warning: {warning}")
    return _run_directly(context, what, progress, warning)


def _run_directly(context: RunContext, what: Options, progress: Progress, warning: str = "") -> Result:
    """Run without Prefect. warning: a note of the run."""
    direct = context.for_run(EventLog(progress, *trackers(context.recipe, context.store)))
    direct.notes += [warning] * bool(warning)
    result = run_graph(finetune(context.recipe), direct, what)
    result.printed = [scrub(warning)] * bool(warning)
    return result


def _print_result(recipe: settings.Recipe, result: Result, idle: bool) -> None:
    """Print how a run ended, its notes, and the table of its stages, which ends with the verdict."""
    from trnflow.flows.services.pages import pages

    if idle:
        tell("", f"nothing to do: every stage of {recipe.name} was a hit ({result.record['seconds']:.2f} s)")
    elif result.error is None:
        seconds, dollars = result.record["seconds"], result.record["dollars"]
        cost = f" (${dollars:.2f} on {recipe.hardware.name})" if dollars else ""
        tell("", f"{recipe.name} done in {report.seconds(seconds)} s{cost}; run {result.run}; pages: `trnflow ui`")
    tracking = recipe.tracking
    if tracking.enabled and (tracking.uri or tracking.experiment != TrackingConfig().experiment):
        # `trnflow ui` knows no recipe
        tell(pages(home_folder(), tracking, recipe.folder("tracking.uri"))[1])
    notes = [note for note in result.notes if note not in result.printed]
    tell(*report.ended(result.steps, notes, result.verdict))
