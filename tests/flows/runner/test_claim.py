"""How a run waits for what another one makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.stores import new_store
from trnflow.flows.runner import claim
from trnflow.flows.runner.claim import LONGEST_WAIT, Turn
from trnflow.flows.runner.stored import Stored
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import Lease

KEY = "0" * 64


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


def stored(store: Store, folder: Path) -> Stored:
    (folder / "made").mkdir()
    (folder / "made/file").write_text("a")
    return Stored(store.ingest(folder / "made", "words", {}), "hit")


def turn(store: Store, look: Callable[[], Stored | None]) -> Turn:
    return Turn(store, "run", "toy", "mine", 1000.0, look, say=lambda text: None, on_wait=lambda: None)


def test_a_run_that_waits_for_hours_looks_each_second(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(claim, "time", SimpleNamespace(sleep=pauses.append))
    made = stored(store, tmp_path)
    with store.waiter(KEY, run="other", attempt="other", ttl=1000.0).acquire() or pytest.fail("the key is free"):
        waits = turn(store, lambda: made if len(pauses) == 30 else None)
        with waits.claim(KEY, []) as found:
            assert found is made
    assert pauses[0] < 0.1 and max(pauses) == pauses[-1] == LONGEST_WAIT


def test_what_was_published_before_the_turn_came_is_taken(store: Store, tmp_path: Path) -> None:
    made = stored(store, tmp_path)
    with turn(store, lambda: made).claim(KEY, []) as found:
        assert found is made
    with turn(store, lambda: None).claim(KEY, []) as found:
        assert isinstance(found, Lease)
