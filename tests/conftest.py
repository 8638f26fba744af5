"""Fixtures all tests share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import suite
from tests.suite import pytest_addoption, pytest_collection_finish, pytest_collection_modifyitems  # noqa: F401 - hooks

if TYPE_CHECKING:
    from tests.helpers.command_line import Shell
    from tests.helpers.data_stages import Bench

PROJECT = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Set up tiers and measuring, take hypothesis's limit of time away (a crowded machine is no fault), and restore signals.

    Under nohup, or in the background of a script, signals come ignored, and processes that tests start inherit that.
    """
    # torch reads it on import: on busy cores its threads, which wait for each other, took five times the processor time
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # transformers else imports torch_xla into the process of the tests
    os.environ.setdefault("USE_TORCH_XLA", "0")
    settings.register_profile("any machine", settings(), deadline=None)
    settings.load_profile("any machine")
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    suite.configure(config)


@pytest.fixture(autouse=True)
def ordinary_floats() -> Iterator[None]:
    """Training makes the processor take denormals for zero; a test that trains in this process must not leave that on."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(scope="session")
def shared() -> Path:
    return shared_folder()


def shared_folder() -> Path:
    """The folder of real datasets and models beside the project; its absence is a visible skip, and fails in CI."""
    folder = Path(os.environ.get("TRNFLOW_SHARED", PROJECT.parent / "shared"))
    if not (folder / "data").is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"no shared data at {folder}: set TRNFLOW_SHARED")
        pytest.skip(f"no shared data at {folder}: set TRNFLOW_SHARED")
    return folder


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """The data stages, called one by one in a folder of their own."""
    from tests.helpers.data_stages import new_bench

    return new_bench(tmp_path)


@pytest.fixture
def trnflow(tmp_path: Path) -> Shell:
    """The command line in a folder with rows and a recipe `mine.yaml`."""
    from tests.helpers.command_line import InProcessShell, write_project

    return InProcessShell(write_project(tmp_path))
