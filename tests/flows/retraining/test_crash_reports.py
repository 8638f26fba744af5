"""What a crashed retrain leaves: one event and one entry of the ledger, unless a later one has ended or is under way;
`test_crashed.py` has a server that can't be reached."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.flows.champions.conftest import write_tiny
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.retraining import crashed
from trnflow.flows.retraining.ended import newest_ended, write_ended
from trnflow.flows.retraining.lease import hold_lease
from trnflow.flows.retraining.outcome import Retrained
from trnflow.flows.runner.context import open_store
from trnflow.flows.services.crashed_runs import CrashedRun


def test_a_crash_is_told_and_on_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    write_tiny(tmp_path)
    store = open_store(settings.load(str(tmp_path / "tiny.yaml")))
    store.prepare()
    sent: list[Any] = []
    monkeypatch.setattr(crashed, "send_report", lambda run, name, payload: sent.append((name, payload)))

    def run(minutes: float, recipe: str = "tiny.yaml") -> CrashedRun:
        """It crashed so many minutes from now, for the fourth time."""
        when = datetime.now(UTC) + timedelta(minutes=minutes)
        return CrashedRun(uuid4(), "old-crow", 4, when, str(tmp_path / recipe), [])

    recipe = settings.load(str(tmp_path / "tiny.yaml"))
    with hold_lease(recipe, store, wait=False):
        assert not crashed.report(run(-1)) and not sent, "it is under way again"
    assert crashed.report(run(-1))
    ((name, payload),) = sent
    assert (name, payload["error"]["type"]) == ("tiny", "ProcessFailed")
    assert payload["why"] == "the retrain crashed 4 times, and is not scheduled again"
    ended = newest_ended(store, "tiny")
    assert ended is not None and (ended.outcome, ended.failures) == ("failed", 1)
    assert not crashed.report(run(-1)) and len(sent) == 1, "what ended since is another one"
    write_ended(store, Retrained("tiny", None, False, "the same"), None)
    assert not crashed.report(run(-1))
    assert crashed.report(run(1)) and len(sent) == 2, "it crashed after that"


def test_the_crash_of_a_recipe_that_can_not_be_read_is_told_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    sent: list[Any] = []
    monkeypatch.setattr(
        crashed, "send_report", lambda run, name, payload: sent.append((name, payload["error"]["type"]))
    )
    assert crashed.report(CrashedRun(uuid4(), "old-crow", 4, datetime.now(UTC), str(tmp_path / "gone.yaml"), []))
    assert sent == [("gone", "ProcessFailed")], "of the crash"
