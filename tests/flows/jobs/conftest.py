"""A store, and where a job of it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.stores import new_store
from trnflow.flows.jobs.order import JobUri
from trnflow.tasks.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


@pytest.fixture
def uri(store: Store) -> JobUri:
    return JobUri(store.root, "a" * 64)
