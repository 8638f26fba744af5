"""`trnflow rehearse RECIPE`: find in a minute what would fail in a run; also before a long `run` or `sweep`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _SubParsersAction
from typing import TYPE_CHECKING

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.output import emit_json, print_error, say, tell
from trnflow.flows.display.progress import Progress
from trnflow.flows.runner.context import RunContext, open_context
from trnflow.flows.runner.plan import Options
from trnflow.tasks.errors import TrnflowError

if TYPE_CHECKING:
    from trnflow.flows.rehearsal.rehearse import Rehearsal


def add_commands(sub: _SubParsersAction[ArgumentParser], online: ArgumentParser) -> None:
    parser = add_command(
        sub, "rehearse", rehearse_recipe, online, "run every stage on a few rows, and find what would fail"
    )
    parser.epilog = (
        "A rehearsal can't find a bad learning rate, a loss that diverges after hours, or what goes wrong only at full "
        "width or on many machines."
    )


def rehearse_recipe(options: Namespace) -> int:
    """Print remarks, and the fault if a run would fail: then the exit code is 2."""
    from trnflow.flows.rehearsal.rehearse import rehearse

    context = open_context(options.recipe, options.overrides, offline=options.offline)
    with Progress() as progress:
        rehearsal = rehearse(context, progress)
    if options.json:
        emit_json(rehearsal.to_json())
    else:
        print_rehearsal(rehearsal, context.recipe.name)
    if rehearsal.fault is None:
        return 0
    print_error(rehearsal.fault, options)
    return 2


def rehearse_before(context: RunContext, what: Options) -> TrnflowError | None:
    """Rehearse the context's planned run if it is long and its like has not passed yet; return the fault, or None."""
    from trnflow.flows.rehearsal.before_run import rehearse_first

    with Progress() as progress:
        rehearsal = rehearse_first(context, what, (progress,))
    if rehearsal is not None and rehearsal.fault is None:
        say(f"rehearsed in {rehearsal.seconds:.0f} s, without a fault; the run begins")
    return rehearsal.fault if rehearsal else None


def print_rehearsal(rehearsal: Rehearsal, name: str) -> None:
    """Print the remarks, and what went well."""
    of_sample = rehearsal.of_sample
    tell(*(f"remark{' on the sample' if text in of_sample else ''}: {text}" for text in rehearsal.remarks))
    if rehearsal.fault is None:
        killed = "; training was killed once and went on" if rehearsal.killed else ""
        tell(rehearsal.memory, f"{name} is sound: every stage ran on a few rows{killed} ({rehearsal.seconds:.0f} s)")
    else:
        stage = f" in {rehearsal.fault.stage}" if rehearsal.fault.stage else ""
        tell(f"{name} would fail{stage} (found after {rehearsal.seconds:.0f} s)")
