"""What `predict` prints of a row, what `accept` takes over, and what `rehearse` passes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import Shell
from tests.helpers.stores import new_store, record_of
from trnflow.flows.cli.accept import _adopt
from trnflow.flows.cli.model.predict import TEXTS_SHOWN, _columns_in, _shown
from trnflow.tasks.kinds.registry import kind_of


@pytest.mark.parametrize(("letters", "shown"), [(TEXTS_SHOWN, "a" * 60), (TEXTS_SHOWN + 1, f"{'a' * 59}…")])
def test_a_long_text_is_cut_to_sixty_characters(letters: int, shown: str) -> None:
    result = {"text": "a" * letters, "label": "yes", "probabilities": {"yes": 0.9, "no": 0.1}}
    assert _shown(result, kind_of("classification")).rpartition("  ")[2] == shown


def test_names_of_columns_are_split_unless_a_column_has_a_comma() -> None:
    assert _columns_in(["id, day", "a,b"], ["a,b", "id"]) == ["id", "day", "a,b"]


@pytest.mark.parametrize("counted", [None, "sha256:c"])
def test_an_accepted_result_keeps_what_is_counted_of_it_and_what_it_took(tmp_path: Path, counted: str | None) -> None:
    store = new_store(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a.txt").write_text("alpha")
    past: Any = {
        **record_of(store.ingest(tmp_path / "out", "rows", {}).digest),
        **({"counted": counted} if counted else {}),
    }
    store.publish(past)
    took: Any = {
        "schema": 1,
        "attempt": "a",
        "stage": "s",
        "outcome": "completed",
        "seconds": 7.0,
        "figures": {"rows": 3},
    }
    store.write_attempt(past["key"], "a", took)
    document: Any = record_of("", now=2)["document"]
    _adopt(store, "s", document, past, [])
    record: Any = store.record("s", record_of("", now=2)["key"])
    assert (record["artifact"], record.get("counted")) == (past["artifact"], counted)
    assert record["adopted"]["from"] == past["key"]
    journal = store.attempt(record["key"], record["attempt"])
    assert (journal["seconds"], journal["figures"]) == (7.0, {"rows": 3})


def test_a_rehearsal_without_a_network_asks_for_nothing(trnflow: Shell) -> None:
    rows = "data.source=http://127.0.0.1:1/train.jsonl"
    assert "while online" in trnflow.error("rehearse", "mine.yaml", "--offline", rows, code=2)
    assert "can't be read: [Errno 111]" in trnflow.error("rehearse", "mine.yaml", rows, code=2)
