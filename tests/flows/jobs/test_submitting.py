"""Which job of a platform a run joins, and which it ends when its own can't be submitted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.helpers.stores import new_store
from trnflow.flows.jobs.elsewhere import Elsewhere
from trnflow.flows.jobs.listing import stop_file
from trnflow.flows.jobs.order import JobUri, job_name, result_file
from trnflow.flows.jobs.submitted import write_submission
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.recipes.sections import LaunchConfig
from trnflow.flows.runner.context import RunContext
from trnflow.tasks.errors import ConfigError, MachineError, StoreError
from trnflow.tasks.events import EventLog
from trnflow.tasks.store import Store


class Platform:
    """One that has a job, and takes another."""

    kind, python = "slurm", "python3"

    def __init__(self, lives: str | None = None, refuses: Exception | None = None) -> None:
        self.lives, self.refuses = lives, refuses
        self.ended: list[str] = []

    def find(self, name: str) -> str | None:
        return self.lives

    def submit(self, name: str, command: Any) -> str:
        if self.refuses is not None:
            raise self.refuses
        return "new"

    def end(self, ticket: str) -> None:
        self.ended.append(ticket)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


@pytest.fixture
def uri(store: Store) -> JobUri:
    return JobUri(store.root, "a" * 64)


def submitted(platform: Platform, store: Store, uri: JobUri) -> str:
    elsewhere = Elsewhere(("train",), cast(Recipe, SimpleNamespace(launch=LaunchConfig())))
    elsewhere._platform = cast(Any, platform)
    context = cast(RunContext, SimpleNamespace(store=store, log=EventLog()))
    return elsewhere._submitted(context, uri)["ticket"]


def ends(store: Store, uri: JobUri, outcome: str) -> None:
    store.backend.replace(f"jobs/{uri.id}/order.json", b"{}")
    document = {
        "run": "there",
        "outcome": outcome,
        "stages": [],
        "notes": [],
        "ended": "2026-01-01T00:00:00Z",
        "error": None,
    }
    store.backend.replace(result_file(uri.id), json.dumps(document).encode())


def test_a_job_that_is_over_and_still_at_its_platform_is_not_joined(store: Store, uri: JobUri) -> None:
    assert submitted(Platform(lives="old"), store, uri) == "old"
    ends(store, uri, "stopped")  # its platform starts it again
    assert submitted(Platform(lives="old"), store, uri) == "old"
    store.backend.create(stop_file(uri.id, "there"), b"")
    assert submitted(Platform(lives="old"), store, uri) == "new"
    ends(store, uri, "failed")
    assert submitted(Platform(lives="old"), store, uri) == "new"


def test_what_is_refused_ends_nobodys_job_and_what_may_have_been_taken_ends_its_own(
    store: Store, uri: JobUri, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after(error: Exception, lives: str | None) -> list[str]:
        platform, answers = Platform(refuses=error), iter([None, lives])
        monkeypatch.setattr(platform, "find", lambda name: next(answers))
        with pytest.raises(type(error)):
            submitted(platform, store, uri)
        return platform.ended

    assert after(ConfigError("your quota is 0"), "another's") == []
    assert after(MachineError("it did not answer in time"), "taken") == ["taken"]
    write_submission(store, uri.id, "slurm", "another's", ())
    assert after(MachineError("it did not answer in time"), "another's") == []
    platform = Platform()
    monkeypatch.setattr(
        "trnflow.flows.jobs.elsewhere.write_submission",
        lambda *_: (_ for _ in ()).throw(StoreError("the store is gone")),
    )
    with pytest.raises(StoreError):
        submitted(platform, store, uri)
    assert platform.ended == ["new"], "though the platform does not list it yet"


def test_the_same_order_in_two_stores_has_two_names() -> None:
    names = {job_name(root, "0123456789ab") for root in ("s3://b/alice", "s3://b/bob", "/shared/store")}
    assert len(names) == 3 and all(name.startswith("0123456789ab") and name.isalnum() for name in names)
    assert job_name("s3://b/bob/", "0123456789ab") in names
