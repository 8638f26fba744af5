"""An attempt at a stage: its name, what its journal says at first, how it ended."""

from __future__ import annotations

import os
import socket
import time
from datetime import UTC, datetime

from tasks.artifact import Json
from tasks.errors import Interrupted
from tasks.store.lease import LeaseLost


def now() -> str:
    """UTC, ISO 8601, to the second."""
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
    return "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"
