"""Local stores and an S3 server process; runs in processes of their own on either."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.runner.forks import Forks, forks
from tests.helpers.s3_server import s3_endpoint, s3_root  # noqa: F401 - fixtures


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.nightly)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return root_of(request, tmp_path)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.nightly)])
def starters(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Forks]:
    with forks(tmp_path, root_of(request, tmp_path)) as starting:
        yield starting


def root_of(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "local" else str(request.getfixturevalue("s3_root"))


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Forks]:
    with forks(tmp_path, str(tmp_path / "store")) as starting:
        yield starting
