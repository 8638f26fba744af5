"""Fixtures of the tests of flows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.prefect_api import Api, own_server, shared_server
from tests.helpers.stores import new_store
from trnflow.tasks.store import Store


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API's URL of one Prefect server for the whole test run, shared by the workers of pytest-xdist."""
    folder = tmp_path_factory.getbasetemp()
    with shared_server(folder.parent if folder.name.startswith("popen-") else folder) as url:
        yield url


@pytest.fixture(scope="module")
def api(server: str, tmp_path_factory: pytest.TempPathFactory) -> Api:
    """The shared server, and a home of the module's own. Other modules' runs stand in the same server."""
    return Api(tmp_path_factory.mktemp("house") / ".trnflow", server)


@pytest.fixture(scope="module")
def own_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server of the module's own, which the module may stop; its home is that of the runs."""
    home: Path = tmp_path_factory.mktemp("house") / ".trnflow"
    with own_server(home) as url:
        yield Api(home, url)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)
