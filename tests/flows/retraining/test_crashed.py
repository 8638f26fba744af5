"""The report of a crashed retrain: it is on record only once its event was sent, and a retrain that lives is not reported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from tests.flows.champions.conftest import write_tiny
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.retraining.crashed import report
from trnflow.flows.retraining.ended import newest_ended, write_ended
from trnflow.flows.retraining.lease import hold_lease
from trnflow.flows.retraining.outcome import Retrained
from trnflow.flows.runner.context import open_store
from trnflow.flows.services.crashed_runs import CrashedRun
from trnflow.tasks.errors import ConfigError


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recipe]:
    """A recipe with an empty store, while Prefect's server can't be reached."""
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / ".trnflow"))
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    write_tiny(tmp_path)
    found = settings.load(str(tmp_path / "tiny.yaml"))
    open_store(found).prepare()
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api", PREFECT_CLIENT_MAX_RETRIES: 0}):
        yield found


@pytest.fixture
def crashed(tmp_path: Path, recipe: Recipe) -> CrashedRun:
    """A flow run of the recipe that crashed a minute ago for the fourth time."""
    minute_ago = datetime.now(UTC) - timedelta(minutes=1)
    return CrashedRun(uuid4(), "old-crow", 4, minute_ago, str(tmp_path / "tiny.yaml"), [])


def test_a_crash_whose_event_can_not_be_sent_is_not_on_record(recipe: Recipe, crashed: CrashedRun) -> None:
    store = open_store(recipe)
    for _ in range(2):  # the lease is free again, and the crash is still to be reported
        with pytest.raises(ConfigError, match="can't be reached"):
            report(crashed)
        assert newest_ended(store, recipe.name) is None
    with pytest.raises(ConfigError, match="can't be reached"):
        report(replace(crashed, recipe="none.yaml"))


def test_a_retrain_that_is_under_way_again_or_ended_since_is_not_reported(recipe: Recipe, crashed: CrashedRun) -> None:
    store = open_store(recipe)
    with hold_lease(recipe, store, wait=False):
        assert not report(crashed)
    assert newest_ended(store, recipe.name) is None
    write_ended(store, Retrained(recipe.name, None, False, "said"), None)
    assert not report(crashed)
    with pytest.raises(ConfigError, match="can't be reached"):  # it crashed after that end
        report(replace(crashed, crashed=datetime.now(UTC) + timedelta(minutes=1)))
