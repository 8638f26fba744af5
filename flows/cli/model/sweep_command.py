"""`trnflow sweep RECIPE`: train with varied settings, then run the whole pipeline with the best."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.output import emit_json, print_error, say, tell
from trnflow.flows.cli.rehearse_command import rehearse_before
from trnflow.flows.display import report
from trnflow.flows.display.progress import Progress
from trnflow.flows.finetune import finetune
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import context_of, make_plan, open_store
from trnflow.flows.runner.plan import Options
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.sources.model_source import model_source
from trnflow.tasks.sources.resolver import Answers

if TYPE_CHECKING:
    from trnflow.flows.sweeps.files import SweepDocument

SYNTAX = ": section.setting=1e-5..1e-4:log, low..high or a,b,c for each that varies"
OPTIONS = ("within", "trials", "metric", "direction", "sampler", "parallel", "name")
"""Options that set the settings of the same name in the section `sweep`."""


def add_commands(sub: Any, online: ArgumentParser) -> None:
    found = add_command(sub, "sweep", run_sweep, online, "vary settings, and run all stages with the best", SYNTAX)
    found.add_argument(
        "--within", metavar="TIME", help="try a ladder of good settings for so long, such as 30m, and vary nothing else"
    )
    found.add_argument("--trials", metavar="N", help="the number of trials (default: 20)")
    found.add_argument(
        "--metric",
        metavar="NAME",
        help="the metric of training to compare by (default: eval_loss; with --within train.best_metric or eval_accuracy)",
    )
    found.add_argument("--direction", metavar="min|max", help="whether a low or a high metric is good")
    found.add_argument("--sampler", metavar="tpe|random|grid", help="how settings are chosen (default: tpe)")
    found.add_argument("--parallel", metavar="N", help="trials at a time (default: 1)")
    found.add_argument("--name", metavar="NAME", help="the sweep's name (default: the recipe's)")
    found.add_argument("--no-rehearse", action="store_true", help="do not rehearse long trials first")


def run_sweep(options: Namespace) -> int:
    """Run the trials that are left, then the winner, and print a table. The exit code is that of the winner's run."""
    from trnflow.flows.sweeps.plan import read_plan
    from trnflow.flows.sweeps.sweep import sweep
    from trnflow.flows.sweeps.trial import direct_runs

    given = [f"sweep.{name}={value}" for name in OPTIONS if (value := getattr(options, name)) is not None]
    plan = read_plan(options.recipe, [*options.overrides, *given])
    answers = Answers()
    # a rehearsal would take from the time of --within, whose first trial shows the same faults
    rehearses = not (options.no_rehearse or plan.recipe.sweep.within)
    if rehearses and (fault := _rehearse(plan.recipe, options.offline, answers)) is not None:
        print_error(fault, options)
        return 2
    with Progress() as progress:
        content, result = sweep(
            plan, direct_runs(answers), say, readers=(progress,), offline=options.offline, answers=answers
        )
    error = result.error if result else None
    if options.json:
        emit_json(content)
    else:
        tell(*_lines(content))
    return print_error(error, options) if error else 0


def _rehearse(recipe: Recipe, offline: bool, answers: Answers) -> TrnflowError | None:
    """Rehearse the recipe that is varied, if its runs are long; return the fault, or None."""
    from trnflow.flows.rehearsal.before_run import is_small

    context = context_of(recipe, open_store(recipe), offline=offline, answers=answers)
    if is_small(context.resolver.ask_once(model_source, recipe.model).identity["config"]):
        return None
    context.plan = make_plan(finetune(recipe), context)
    return rehearse_before(context, Options())


def _lines(content: SweepDocument) -> list[str]:
    from trnflow.flows.sweeps.sweep import shown

    rows = [("trial", "state", str(content["metric"]), "settings", "run")]
    for trial in content["trials"]:
        value = "" if trial["value"] is None else report.number(trial["value"])
        rows.append((str(trial["number"]), trial["state"], value, shown(trial["settings"]), trial["run"] or ""))
    lines = [*report.aligned(rows), ""]
    if content["best"]:
        lines.append(f"best: trial {content['best']['number']}, {shown(content['best']['settings'])}")
    if content["winner"]:
        lines.append(f"its whole run {content['winner']['run']}: {report.figures(content['winner']['metrics'])}")
    lines.append(f"stages before training that trials shared: {report.seconds(content['shared_seconds'])} s")
    return lines
