"""Local stores and an S3 server process; runs in processes of their own on either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.forks import Forks, forks
from tests.s3_server import s3_endpoint, s3_root  # noqa: F401 - fixtures


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "local" else str(request.getfixturevalue("s3_root"))


@pytest.fixture
def starters(root: str, tmp_path: Path) -> Iterator[Forks]:
    with forks(tmp_path, root) as starting:
        yield starting


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Forks]:
    with forks(tmp_path, str(tmp_path / "store")) as starting:
        yield starting
