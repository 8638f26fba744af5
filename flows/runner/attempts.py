"""Ids, journals and ends of attempts, and where a resumable stage would start."""

from __future__ import annotations

import os
import socket
import time

from trnflow.flows.runner.reasons import Told, nearest_changes
from trnflow.tasks.documents import Documented, Journal, KeyDocument
from trnflow.tasks.errors import is_interruption
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import document_name
from trnflow.tasks.store.lease import LeaseLost
from trnflow.tasks.system.clock import now


def attempt_id(run: str, stage: str) -> str:
    """Return a new id: `<run id>-<stage name>-<number>`."""
    return f"{run}-{stage}-{time.monotonic_ns() % 10**6}"


def run_of(attempt: str) -> str:
    """Return the id of the run that an attempt belongs to."""
    return attempt.rsplit("-", 2)[0]


def new_journal(run: str, stage: str, attempt: str, recipe: str = "") -> Journal:
    """Return the journal of an attempt that begins now in this process; writes nothing."""
    return {
        "schema": 1,
        "attempt": attempt,
        "run": run,
        "recipe": recipe,
        "stage": stage,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": now(),
        "outcome": "running",
        "figures": {},
    }


def ending(error: BaseException) -> str:
    """Return `superseded` (another run took over the lease), `interrupted` or `failed`."""
    if isinstance(error, LeaseLost):
        return "superseded"
    return "interrupted" if is_interruption(error) else "failed"


def outlook(store: Store, stage: str, key: str, document: KeyDocument, told: Told, recipe: str = "") -> str:
    """Say where a resumable stage would start: on from step N of its partial state, or from zero, and how the nearest
    key of the recipe ("": of any) that has partial state differs; "" if none has."""
    steps = store.partial(key).steps()
    if steps:
        return f"goes on from step {steps[-1]}"
    changes = nearest_changes(unfinished(store, stage, recipe), document, told)
    return f"starts from zero: the unfinished one differs in {changes}" if changes else ""


def unfinished(store: Store, stage: str, recipe: str = "") -> list[Documented]:
    """Return the key documents of a stage's keys that have partial state. recipe: which tried last; "" for any."""
    found: list[Documented] = []
    for key in store.backend.folders("partial"):
        names = [document_name(name) for name in store.backend.names(f"attempts/{key}")]
        # partial state lies under its key alone: the newest journal that has the key document tells what it is of
        attempts = [store.attempt(key, name) for name in sorted(names, reverse=True)]
        told = (attempt for attempt in attempts if attempt.get("stage") == stage and "document" in attempt)
        found += [
            {"document": attempt["document"]}
            for attempt in list(told)[:1]
            if not recipe or attempt.get("recipe") in (None, "", recipe)
        ]
    return found
