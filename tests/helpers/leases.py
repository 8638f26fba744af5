"""Leases in a store whose holder, a process of another machine, is dead."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from trnflow.tasks.store import Store
from trnflow.tasks.system.process import Process

AWAY = Process("another-machine", "b", "pid-1", 7, 1)


def write_dead_lease(store: Store, key: str, run: str, attempt: str, ttl: float = 0.2) -> None:
    """Write the lease of a process that was killed an hour ago on another machine."""
    since = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    lease = {"token": "t", "process": AWAY._asdict(), "run": run, "attempt": attempt, "since": since, "ttl": ttl}
    assert store.backend.create(f"leases/{key}/1.json", json.dumps(lease).encode())
