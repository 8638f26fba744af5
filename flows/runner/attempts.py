"""Make the id and the first journal of an attempt, classify how it ended, and tell whether the next one can resume.

An attempt is one try to run a stage. Its journal is the JSON document `attempts/<key>/<attempt>.json` in the store.
"""

from __future__ import annotations

import os
import socket
import time

from tasks.artifact import Json, Meta
from tasks.errors import is_interruption
from tasks.keys.explain import nearest_record
from tasks.store import Store
from tasks.store.layout import document_name
from tasks.store.lease import LeaseLost
from tasks.system.clock import now

PREVIEW = "-preview"
"""The end of the id of a run that only shows rows."""


def attempt_id(run: str, stage: str) -> str:
    """Return a new id for an attempt to run a stage: the ids of the run and the stage, and a number."""
    return f"{run}-{stage}-{time.monotonic_ns() % 10**6}"


def new_journal(run: str, stage: str, attempt: str, recipe: str = "") -> dict[str, Json]:
    """Return the journal of an attempt that begins now in this process. Its outcome is "running". recipe: its name."""
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
    """Return the outcome of an attempt that an error ended: "superseded" (another run took the lease), "interrupted" or
    "failed"."""
    if isinstance(error, LeaseLost):
        return "superseded"
    return "interrupted" if is_interruption(error) else "failed"


def outlook(store: Store, stage: str, key: str, document: Meta) -> str:
    """Say where a resumable stage would start, as text for the user.

    If the stage's key has partial state, the text is "goes on from step N". If only another key of the stage has partial
    state, the text says that the stage starts from zero and which values differ between the two keys. Otherwise the text is
    empty. Costs one listing of the store.
    """
    steps = store.partial(key).steps()
    if steps:
        return f"goes on from step {steps[-1]}"
    near = nearest_record(unfinished(store, stage), document)
    if near is None:
        return ""
    changes = near[1]
    more = f" and {len(changes) - 2} more" if len(changes) > 2 else ""
    return f"starts from zero: the unfinished one differs in {'; '.join(map(str, changes[:2]))}{more}"


def unfinished(store: Store, stage: str) -> list[Meta]:
    """List the keys of a stage that have partial state, each as {"document": its key document}.

    The key document is taken from the newest attempt that wrote one to its journal.
    """
    found = []
    for key in store.backend.folders("partial"):
        names = [document_name(name) for name in store.backend.names(f"attempts/{key}")]
        attempts = [store.attempt(key, name) for name in sorted(names, reverse=True)]
        told = (attempt for attempt in attempts if attempt.get("stage") == stage and "document" in attempt)
        found += [{"document": attempt["document"]} for attempt in list(told)[:1]]
    return found
