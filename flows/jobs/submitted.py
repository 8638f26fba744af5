"""Which jobs were given to a platform: `<root>/jobs/<id>/submitted/<n>.json`. Whether one lives, the platform says."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Sequence
from typing import cast

from trnflow.tasks.documents import JobSubmission
from trnflow.tasks.store import Store
from trnflow.tasks.store.document_check import checked_document
from trnflow.tasks.system.clock import now


def submissions_of(store: Store, job: str) -> list[JobSubmission]:
    """Return a job's submissions, the oldest first, without damaged ones. Raises StoreError."""
    found = []
    names = store.backend.names(f"jobs/{job}/submitted")
    # the first ones may be in gc's trash
    for name in sorted(names, key=lambda name: (len(name), name)):
        with contextlib.suppress(FileNotFoundError, ValueError):
            found.append(cast(JobSubmission, checked_document(name, store.backend.read(name))))
    return found


def write_submission(store: Store, job: str, platform: str, ticket: str, earlier: Sequence[str]) -> JobSubmission:
    """Write that a job was submitted. earlier: the runs that it had. Raises StoreError."""
    document = JobSubmission(
        platform=platform, ticket=ticket, earlier=[*earlier], host=socket.gethostname(), time=now()
    )
    number = len(store.backend.names(f"jobs/{job}/submitted"))
    while not store.backend.create(_file(job, number), json.dumps(document).encode()):
        number += 1
    return document


def _file(job: str, number: int) -> str:
    return f"jobs/{job}/submitted/{number}.json"
