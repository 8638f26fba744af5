"""Stores that are ready to be written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.store import Store


def new_store(folder: Path, root: str = "") -> Store:
    """The store at `root`, by default in the folder, where its home lies."""
    store = Store(root or str(folder / "store"), folder / "home")
    store.prepare()
    return store


def record_of(artifact: str, created: str = "2026-01-01", **params: Any) -> dict[str, Any]:
    """A record of stage `s`, under the key that these params give."""
    document = {"stage": "s", "code": {}, "params": params, "inputs": {}, "env": {}, "accel": {}}
    key = digest_of(document).removeprefix("sha256:")
    return {
        "stage": "s", "key": key, "artifact": artifact, "document": document, "attempt": "a", "created": created,
    }  # fmt: skip


def recorded(stage: str, key: str | None, artifact: str | None = None, action: str = "ran") -> dict[str, Any]:
    """A stage in a run record."""
    return {"stage": stage, "action": action, "why": "", "key": key, "artifact": artifact, "seconds": 1.0}
