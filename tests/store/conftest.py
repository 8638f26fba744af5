"""Stores of every kind: a local folder, memory, and a real S3 server process (slow, but for the tests `on_s3_too`)."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.helpers.s3_server import s3_endpoint, s3_root  # noqa: F401 - fixtures
from tests.helpers.stores import new_store
from trnflow.tasks.store import Store

on_s3_too = pytest.mark.parametrize("root", ["local", "memory", "s3"], indirect=True)


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3_root"))
    return str(tmp_path / "store") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(root: str, tmp_path: Path) -> Store:
    return new_store(tmp_path, root)
