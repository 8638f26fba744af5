"""A recipe in a folder, for sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.helpers.command_line import InProcessShell


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> InProcessShell:
    """The command line in a folder with the recipe `tiny.yaml`, whose store is empty."""
    return InProcessShell(write_tiny(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the recipe `tiny.yaml`."""
    monkeypatch.chdir(write_tiny(tmp_path))
    return tmp_path
