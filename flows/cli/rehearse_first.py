"""Rehearse a long run before it begins, for `run` and `sweep`."""

from __future__ import annotations

import sys

from trnflow.flows.display.progress import Progress
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.plan import Options
from trnflow.tasks.errors import TrnflowError


def rehearse_before(context: RunContext, what: Options) -> TrnflowError | None:
    """Rehearse the context's planned run if it is long and its like has not passed yet; return the fault, or None."""
    from trnflow.flows.rehearsal.before_run import rehearse_first

    with Progress() as progress:
        rehearsal = rehearse_first(context, what, (progress,))
    if rehearsal is not None and rehearsal.fault is None:
        sys.stderr.write(f"rehearsed in {rehearsal.seconds:.0f} s, without a fault; the run begins\n")
    return rehearsal.fault if rehearsal else None
