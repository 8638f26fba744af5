"""Find the root of a store and open its backend (the file operations on it)."""

from __future__ import annotations

import os
from pathlib import Path

from trnflow.tasks.sources.paths import local_path
from trnflow.tasks.store.backend import Backend

VARIABLE = "TRNFLOW_STORE"


def default_root(home: Path) -> str:
    """Return the store's root for cases where no recipe and no option names a root: the environment variable
    TRNFLOW_STORE, else `<home>/store`. home: the folder of local state, TRNFLOW_HOME or `.trnflow`."""
    return os.environ.get(VARIABLE) or str(home / "store")


def open_backend(root: str) -> Backend:
    """Return the backend (an object with the file operations) of the store at `root`: a local folder (`path`,
    `file://path`) or any fsspec URL (`s3://bucket/prefix`, `memory://name`).

    fsspec is imported only for URLs.
    """
    folder = local_path(root)
    if folder is None:
        from trnflow.tasks.store.remote import RemoteBackend

        return RemoteBackend(root)
    from trnflow.tasks.store.local import LocalBackend

    return LocalBackend(folder)
