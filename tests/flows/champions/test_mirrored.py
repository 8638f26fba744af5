"""What is written for MLflow of a promotion: which challenger lost, and why one was refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.helpers.stores import new_store
from trnflow.flows.champions import mirror as mirroring
from trnflow.flows.recipes import recipe as settings
from trnflow.tasks.events import Reader
from trnflow.tasks.store.ledger import append_ledger
from trnflow.tasks.store.ledger.entries import REFUSED, NewEntry

OURS, THEIRS = (f"sha256:{digit * 64}" for digit in "ab")


@pytest.mark.parametrize(
    ("challenger", "why", "lost", "refused"),
    [
        (OURS, "better", None, None),
        (THEIRS, "not surely better", THEIRS, None),
        (THEIRS, f"{REFUSED}unfair", THEIRS, "unfair"),
    ],
)
def test_the_challenger_that_lost_and_what_refused_it_are_told(
    challenger: str, why: str, lost: str | None, refused: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny(tmp_path)
    recipe, store = settings.load(str(tmp_path / "tiny.yaml")), new_store(tmp_path)
    recipe = recipe.model_copy(update={"tracking": recipe.tracking.model_copy(update={"enabled": True})})
    entry = NewEntry(
        outcome="promoted", by="promote", why="better", champion=OURS, task="classification", frozen=THEIRS
    )
    assert append_ledger(store, "tiny", entry, 0)
    told: dict[str, Any] = {}

    class Told(Reader):
        note = ""

        def read(self, event: Any, state: Any) -> None:
            if event["event"] == "run_begun":
                told["tags"] = event["tracking"]["tags"]

    monkeypatch.setattr(mirroring, "trackers", lambda *_, **__: (Told(),))
    monkeypatch.setattr(mirroring, "write_champion", lambda *_, **given: told.update(given))
    decision: Any = SimpleNamespace(challenger=challenger, champion=OURS, why=why, comparison=None)
    assert mirroring.mirror(recipe, store, decision) is None
    assert (told["challenger"], told["frozen"]) == (lost, THEIRS)
    assert told["tags"]["trnflow.action"] == "promoted"
    assert refused is None or refused in told["tags"]["trnflow.refused"]
    assert ("trnflow.refused" in told["tags"]) == (refused is not None)
