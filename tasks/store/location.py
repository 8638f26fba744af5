"""Find the root of a store and open its backend."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from trnflow.tasks.sources.paths import local_path
from trnflow.tasks.store.backend import Backend

VARIABLE = "TRNFLOW_STORE"


def default_root(home: Path) -> str:
    """Return TRNFLOW_STORE, else `<home>/store`."""
    return os.environ.get(VARIABLE) or str(home / "store")


def store_option(root: str, home: Path) -> str:
    """Return ` --store ROOT`, which a command about a run in the store at `root` needs; "" for the default store."""
    return "" if root == default_root(home) else f" --store {shlex.quote(root)}"


def open_backend(root: str) -> Backend:
    """Return the backend for a folder (`path`, `file://path`) or an fsspec URL (`s3://bucket/prefix`)."""
    folder = local_path(root)
    if folder is None:
        from trnflow.tasks.store.remote import RemoteBackend

        return RemoteBackend(root)
    from trnflow.tasks.store.local import LocalBackend

    return LocalBackend(folder)
