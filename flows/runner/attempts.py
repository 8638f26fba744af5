"""Name an attempt, write its first journal and classify how it ended.

An attempt is one try to run a stage. Its journal is the JSON document `attempts/<key>/<attempt>.json` in the store.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import UTC, datetime

from tasks.artifact import Json
from tasks.errors import is_interruption
from tasks.store.lease import LeaseLost


def now() -> str:
    """Return the current time in UTC as ISO 8601 text, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def attempt_id(run: str, stage: str) -> str:
    return f"{run}-{stage}-{time.monotonic_ns() % 10**6}"


def new_journal(run: str, stage: str, attempt: str) -> dict[str, Json]:
    return {
        "schema": 1,
        "attempt": attempt,
        "run": run,
        "stage": stage,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": now(),
        "outcome": "running",
        "figures": {},
    }


def ending(error: BaseException) -> str:
    if isinstance(error, LeaseLost):
        return "superseded"
    return "interrupted" if is_interruption(error) else "failed"
