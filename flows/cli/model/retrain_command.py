"""`trnflow retrain RECIPE`: train again if data, code or settings changed, and promote a better model."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from trnflow.flows.champions.serving import champion_name
from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.output import complete, emit, emit_json, exit_at_once, print_error, tell
from trnflow.flows.display.progress import Progress
from trnflow.flows.runner.context import RunContext, open_context
from trnflow.flows.runner.mlflow_log import trackers
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import Result, run
from trnflow.tasks.errors import ConfigError, TrnflowError
from trnflow.tasks.events import EventLog
from trnflow.tasks.store.location import store_option

if TYPE_CHECKING:
    from trnflow.flows.retraining.change import RetrainReason
    from trnflow.flows.retraining.checks import Checked
    from trnflow.flows.retraining.outcome import Retrained
    from trnflow.flows.runner.graph import Graph
    from trnflow.tasks.store import Store


def add_commands(sub: Any, online: ArgumentParser) -> None:
    again = add_command(sub, "retrain", retrain, online, "train again if anything changed; promote a better model")
    again.add_argument("--dry-run", action="store_true", help="say what would be judged and why; train nothing")
    again.add_argument("--wait", action="store_true", help="wait while another retrain of the recipe is under way")
    again.add_argument("--direct", action="store_true", help="run without Prefect")


def retrain(options: Namespace) -> int:
    """Retrain and print how it ended: exit code 0 for promoted, kept and unchanged, 1 for stopped, else the error's."""
    from trnflow.flows.retraining.change import find_change
    from trnflow.flows.retraining.retrain import record_failure, unchanged

    context = open_context(options.recipe, options.overrides, offline=options.offline)
    recipe, store = context.recipe, context.store
    try:
        change = find_change(context)
    except TrnflowError as error:
        if not options.dry_run:
            record_failure(recipe, store, error, offline=options.offline)
        raise
    if options.dry_run:
        return _dry_run(options, change)
    if change.is_changed:
        done, prefect_lost = _retrained(options, context, change)
    else:
        done, prefect_lost = unchanged(change, store), False
    _print(options, done, store)
    if prefect_lost:
        exit_at_once(done.exit_code)
    return done.exit_code


def _dry_run(options: Namespace, change: RetrainReason) -> int:
    """Print what a retrain would do, with the checks of the data if they cost little."""
    from trnflow.flows.retraining.checks import check_cheaply

    checked: tuple[Checked, ...] = ()
    unmade, recipe = "", change.recipe
    if change.is_changed:
        checked, unmade = check_cheaply(change)
    stopping = [one.sentence for one in checked if one.result == "stopped"]
    notes = [one.sentence for one in checked if one.result in ("warned", "not applied")] + ([unmade] if unmade else [])
    found = {"stopped": bool(stopping), "checks": [one.to_json() for one in checked], "notes": notes}
    verb = "would be trained and judged" if change.is_changed else "is unchanged"
    lines = [f"{recipe.name} would be stopped: {one}" for one in stopping] or [f"{recipe.name} {verb}: {change.why}"]
    emit(options, {**change.to_json(), **found}, *lines, *(f"note: {one}" for one in notes))
    return 0


def _retrained(options: Namespace, context: RunContext, change: RetrainReason) -> tuple[Retrained, bool]:
    """Retrain, and return how it ended and whether Prefect's server went away meanwhile."""
    with Progress() as progress:
        if options.direct:
            return _directly(options, context, change, progress), False
        from trnflow.flows.cli.prefect_run import call_flow, reach_server

        if away := reach_server(context.store.home):
            raise away
        parameters = {"recipe": options.recipe, "offline": options.offline, "wait": options.wait}
        session = call_flow("retrain", parameters, options.overrides, progress, context, change)
        if isinstance(session, ConfigError):
            raise session
        assert session.retrained is not None
        return session.retrained, session.result is not None and session.result.prefect_lost


def _directly(options: Namespace, context: RunContext, change: RetrainReason, progress: Progress) -> Retrained:
    from trnflow.flows.retraining.retrain import retrain as retrain_recipe

    def train(training: RunContext, graph: Graph) -> Result:
        return run(graph, training.for_run(log), Options(offline=options.offline))

    log = EventLog(progress, *trackers(context.recipe, context.store))
    return retrain_recipe(context, log, train, wait=options.wait, change=change)


def _print(options: Namespace, done: Retrained, store: Store) -> None:
    if done.error is not None:
        complete(done.error, options)
    if options.json:
        emit_json(done.to_json())
    elif done.error is None:
        tell(*_lines(done, options.recipe, store_option(store.root, store.home)))
    if done.error is not None:
        print_error(done.error, options)


def _lines(done: Retrained, recipe: str, there: str) -> list[str]:
    """What is printed of a retraining that did not fail. recipe: as the user named it; there: the option that names its store."""
    lines = [f"{done.recipe} {done.outcome}: {done.why}"]
    lines += [f"note: {note}" for note in done.notes]
    lines += [f"`trnflow report {done.run}{there}` writes the page of this run"] if done.run else []
    if done.champion is None:
        return lines
    name = champion_name(recipe)
    which = f", not the newest judged model {done.challenger[:19]}" if done.challenger else ""
    which = ", the newest judged model" if done.champion == done.challenger else which
    return [*lines, f"{name} is {done.champion[:19]}{which}: `trnflow predict {name} TEXT` predicts with what serves"]
