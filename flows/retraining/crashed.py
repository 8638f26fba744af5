"""Report retrains whose flow run crashed so often that it is not scheduled again: their own process is gone."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from trnflow.flows.recipes.sent import load_sent
from trnflow.flows.retraining.ended import newest_ended
from trnflow.flows.retraining.lease import hold_lease
from trnflow.flows.retraining.outcome import Retrained
from trnflow.flows.retraining.retrain import failure, record_failure
from trnflow.flows.runner.context import open_store
from trnflow.flows.services.crashed_runs import CrashedRun, send_report, unreported_crashes
from trnflow.flows.services.recovery import TIMES
from trnflow.tasks.errors import ProcessFailed, TrnflowError
from trnflow.tasks.store.layout import is_ahead
from trnflow.tasks.system.redaction import hide_secrets


def report_crashed(times: int = TIMES) -> int:
    """Report each retrain of the last day that crashed more than `times` times; return how many. Raises ConfigError."""
    return sum(report(run) for run in unreported_crashes(times))


def report(run: CrashedRun) -> bool:
    """Send the event `trnflow.retrain.failed` of a crashed retrain, and add the failure to the ledger.

    Returns False if another retrain of the recipe has ended since, or is under way. Raises ConfigError, and writes nothing,
    if Prefect's server can't be reached.
    """
    fix = f"see the log of the flow run {run.name} in Prefect; `trnflow retrain {run.recipe}` goes on from its last checkpoint"
    error = ProcessFailed(f"the retrain crashed {run.starts} times, and is not scheduled again", fix)
    with ExitStack() as held:
        try:
            recipe = load_sent(run.recipe, run.overrides)
            store = open_store(recipe)
            lease = held.enter_context(hold_lease(recipe, store, wait=False))
            if isinstance(lease, str):
                return False
            ended = newest_ended(store, recipe.name)
            # a time in the future, of a clock that was wrong, is no later end
            if ended and not is_ahead(ended.created) and datetime.fromisoformat(ended.created) > run.crashed:
                return False
        except TrnflowError:  # the recipe or the store can't be used: the recipe's name is that of the file
            _send(run, Retrained(Path(run.recipe).stem, None, False, error.message, error=error))
            return True
        _send(run, failure(recipe, store, error))
        record_failure(recipe, store, error)
    return True


def _send(run: CrashedRun, ended: Retrained) -> None:
    send_report(run, ended.recipe, hide_secrets(ended.to_json()))
