"""Stores that are ready to be written to."""

from __future__ import annotations

from pathlib import Path

from trnflow.tasks.store import Store


def new_store(folder: Path, root: str = "") -> Store:
    """The store at `root`, by default in the folder, where its home lies."""
    store = Store(root or str(folder / "store"), folder / "home")
    store.prepare()
    return store
