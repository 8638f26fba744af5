"""Which jobs were given to a platform: `<root>/jobs/<id>/submitted/<n>.json`, each created once, so that two who run one recipe
at a time start one job."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import cast

from trnflow.tasks.documents import JobSubmission
from trnflow.tasks.errors import StoreError
from trnflow.tasks.store import Store
from trnflow.tasks.store.document_check import checked_document
from trnflow.tasks.system.clock import now

CLAIM_SECONDS = 90.0
"""How long another machine may take to submit a job."""
LOOK_SECONDS = 1.0
NO_ONE = JobSubmission(platform="", ticket="", earlier=0, host="another machine", time="")
"""In the place of a damaged one."""


def submissions_of(store: Store, job: str) -> list[JobSubmission]:
    """Return a job's submissions, the oldest first. Raises StoreError."""
    count = len(store.backend.names(f"jobs/{job}/submitted"))
    return [_read(store, job, number) for number in range(count)]


def submit(
    store: Store, job: str, number: int, platform: str, earlier: int, send: Callable[[], str]
) -> tuple[JobSubmission, bool]:
    """Make a job's submission of this number, or return the one that another made first, and whether it is this one.

    send: Submits, and returns the ticket.

    Raises:
        StoreError: The store can't be written, or who was first did not submit.
        TrnflowError: Of `send`.
    """
    claimed = JobSubmission(platform=platform, ticket=None, earlier=earlier, host=socket.gethostname(), time=now())
    if not store.backend.create(_file(job, number), json.dumps(claimed).encode()):
        return _await(store, job, number), False
    claimed["ticket"] = ""
    try:
        claimed["ticket"] = send()
    finally:
        store.backend.replace(_file(job, number), json.dumps(claimed).encode())
    return claimed, True


def _await(store: Store, job: str, number: int) -> JobSubmission:
    until = time.monotonic() + CLAIM_SECONDS
    while not (theirs := _read(store, job, number))["ticket"]:
        if theirs["ticket"] == "" or time.monotonic() > until:
            raise StoreError(f"{theirs['host']} was to submit job {job}, and did not", "run the same command again")
        time.sleep(LOOK_SECONDS)
    return theirs


def _read(store: Store, job: str, number: int) -> JobSubmission:
    with contextlib.suppress(FileNotFoundError, ValueError):
        return cast(JobSubmission, checked_document(_file(job, number), store.backend.read(_file(job, number))))
    return NO_ONE


def _file(job: str, number: int) -> str:
    return f"jobs/{job}/submitted/{number}.json"
