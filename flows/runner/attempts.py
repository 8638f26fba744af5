"""Make the id and the journal of an attempt to run a stage, classify how an attempt ended, and find out whether the
next attempt can resume from saved state.

An attempt is one try to run a stage. Its journal is the JSON document `attempts/<key>/<attempt>.json` in the store. The
stage's key is the hash of its key document, the JSON of everything that decides the stage's result.
"""

from __future__ import annotations

import os
import socket
import time

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import is_interruption
from trnflow.tasks.keys.explain import nearest_record
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import document_name
from trnflow.tasks.store.lease import LeaseLost
from trnflow.tasks.system.clock import now

PREVIEW = "-preview"
"""The end of the id of a run that only shows rows."""


def attempt_id(run: str, stage: str) -> str:
    """Return a new id for an attempt (one try to run a stage): `<run id>-<stage name>-<number>`, such as
    `20261120T142233Z-3f9a1c-train-481516`."""
    return f"{run}-{stage}-{time.monotonic_ns() % 10**6}"


def run_of(attempt: str) -> str:
    """Return the id of the run that an attempt belongs to."""
    return attempt.rsplit("-", 2)[0]


def new_journal(run: str, stage: str, attempt: str, recipe: str = "") -> dict[str, Json]:
    """Return the journal (the JSON document that the store keeps of one try to run a stage) of an attempt that begins
    now in this process, with the outcome "running". Writes nothing.

    Args:
        run: The run's id.
        stage: The stage's name.
        attempt: The id from `attempt_id`.
        recipe: The recipe's name.
    """
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
    """Return the outcome of an attempt (one try to run a stage) that ended with this error: "superseded" (another run
    took over the lease, the right to make the key's result), "interrupted" (Ctrl-C, SIGTERM, a cancelled flow run) or
    "failed"."""
    if isinstance(error, LeaseLost):
        return "superseded"
    return "interrupted" if is_interruption(error) else "failed"


def outlook(store: Store, stage: str, key: str, document: Meta) -> str:
    """Return a text for the user that says at which step a resumable stage, such as train, would start.

    Partial state is the state that the stage saved at a step, to resume from. If the store has partial state for the
    stage's key, the text is "goes on from step N". If the store has partial state only for other keys of the stage (as
    after a change of a setting), the text says that the stage starts from zero, and which values differ between
    `document` and that one of the other keys' documents which differs least. Otherwise the text is empty.

    Args:
        stage: The stage's name.
        key: The stage's key, the hash of the key document.
        document: The key document: the JSON of everything that decides the stage's result (code, settings, inputs,
            library versions).
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
    """Return [{"document": key document}] for those keys of a stage for which the store has partial state, the state
    that the stage saved to resume from. A key document is the JSON of everything that decides a result (code, settings,
    inputs), and the key is its hash.

    The store keeps partial state under the key alone. The key document is therefore taken from the key's newest journal
    (the store's document about one try to run a stage) that contains a key document. Keys without such a journal are
    left out.
    """
    found = []
    for key in store.backend.folders("partial"):
        names = [document_name(name) for name in store.backend.names(f"attempts/{key}")]
        attempts = [store.attempt(key, name) for name in sorted(names, reverse=True)]
        told = (attempt for attempt in attempts if attempt.get("stage") == stage and "document" in attempt)
        found += [{"document": attempt["document"]} for attempt in list(told)[:1]]
    return found
