"""Fixtures all tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """Under nohup, or in the background of a script, signals come ignored, and processes that tests start inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
