"""What a run writes in its event log about itself and its steps."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from trnflow.flows.runner.claim import WAITS
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.mlflow_log import ON_RECORD, destination_of, for_mlflow
from trnflow.flows.runner.plan import Options, Step
from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import is_interruption
from trnflow.tasks.events import EventLog
from trnflow.tasks.events.log import error_document
from trnflow.tasks.events.log_copy import copying


@contextlib.contextmanager
def begin_log(
    context: RunContext, options: Options | None = None, *, tags: dict[str, str] | None = None, **more: Json
) -> Iterator[None]:
    """Context in which the events of a run are written to its file; see `EventLog.writing`. Of a run that will be on record
    the store gets a copy, with what its stages print.

    Args:
        options: None for a run that has none but `offline`.
        tags: Of the run in MLflow.
        more: Further fields of `run_begun`.

    Raises:
        ConfigError: A variable in `tracking.uri` is not set.
    """
    recipe, log, options = context.recipe, context.log, options or Options(offline=context.offline)
    is_copied = context.kind in ON_RECORD and not log.is_open
    store = context.store
    copy = copying(store.backend, store.home, context.run) if is_copied else contextlib.nullcontext()
    writing = log.writing(
        context.store.home,
        context.run,
        recipe=recipe.name,
        kind=context.kind,
        parent=context.parent,
        settings=recipe.to_json(),
        options=options.to_json(),
        store=context.store.root,
        host={"name": socket.gethostname(), "python": platform.python_version(), "cores": os.cpu_count()},
        checkout=checkout_state(),
        price_per_hour=recipe.price_per_hour,
        tracking=destination_of(context, tags or {}),
        spent=context.plan.seconds if context.plan else 0.0,
        **more,
    )
    with copy, writing:
        yield


def write_step(context: RunContext, step: Step) -> None:
    context.log.write("stage_ended", **step.outcome(), facts=step.facts, **for_mlflow(context, step))


def write_failure(log: EventLog, stage: str, error: BaseException) -> None:
    document = {name: value for name, value in error_document(error).items() if name != "stage"}
    log.write("stage_failed", stage=stage, error=document, stopped=is_interruption(error))


def say(log: EventLog, stage: str, text: str) -> None:
    """Write a message for the user about a stage; nothing for an empty text."""
    if text.startswith(WAITS):
        log.write("waits", stage=stage, holder=text.removeprefix(WAITS).strip())
    else:
        log.note(text, stage=stage)


def checkout_state() -> Meta | None:
    """Return {"commit": the git commit of the code, "dirty": whether tracked files have uncommitted changes}; None
    outside a checkout, or if git can't be run."""
    code = Path(__file__).resolve()
    # of another repository around an installed copy `git` would run the programs
    if not (code.parents[2] / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        lines = subprocess.run(
            command, cwd=code.parent, capture_output=True, text=True, timeout=10, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid")), None)
    return {"commit": commit, "dirty": any(not line.startswith("#") for line in lines)}
