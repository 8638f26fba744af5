"""Which run `trnflow status --follow` shows."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.stores import new_store
from trnflow.flows.cli.live import status_command
from trnflow.tasks.errors import ConfigError


def test_the_newest_run_in_progress_is_followed_and_no_preview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "20260102T000000-aa",
        "20260103T000000-bb",
        "20260101T000000-cc",
        f"20260104T000000-dd{status_command.PREVIEW}",
    ]
    stages: list[Any] = [{"run": name} for name in names]
    monkeypatch.setattr(status_command, "past_store", lambda *_: new_store(tmp_path))
    monkeypatch.setattr(status_command, "running", lambda store: stages)
    monkeypatch.setattr(status_command, "follow", lambda store, run, options: names.index(run))
    options = Namespace(store=None, run=None, follow=True)
    assert status_command.status(options) == 1
    del stages[:3]
    with pytest.raises(ConfigError, match="no run is in progress"):
        status_command.status(options)
