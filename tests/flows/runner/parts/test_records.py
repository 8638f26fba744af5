"""Which record of a part counts, where one is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.stores import new_store
from trnflow.flows.runner.parts.shards import Shards
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.stage import stage_of
from trnflow.tasks.tokenize_text import tokenize_text


@pytest.mark.parametrize(
    ("force", "lost", "counts"),
    [
        (False, False, "first"),  # another run has made it meanwhile
        (False, True, "second"),  # the record that this run found had lost its part
        (True, False, "second"),
    ],
)
def test_a_part_on_record_is_replaced_where_it_is_lost_or_the_user_wants_it(
    tmp_path: Path, force: bool, lost: bool, counts: str
) -> None:
    store, stage, notes = new_store(tmp_path), stage_of(tokenize_text), list[str]()
    document: Any = {"stage": "tokenize_text.shard", "code": {}, "params": {}, "inputs": {}, "env": {}, "accel": {}}
    call: Any = type("Whole", (), {"document": {**document, "stage": "tokenize_text"}})

    def made(text: str, records: list[Any], *, force: bool) -> str:
        shards = Shards(store, stage, call, {"attempt": text}, tmp_path / text, None, force, notes.append)
        shards.documents, shards.keys, shards.records = [document], [key_of(document)], records
        (shards.work / "parts/0.kept").mkdir(parents=True)
        (shards.work / "parts/0.kept/ids").write_text(text)
        return shards._publish(0, {})

    first = made("first", [None], force=False)
    known = store.record("tokenize_text.shard", key_of(document)) if lost else None
    second = made("second", [known], force=force)
    assert (second == first) == (counts == "first")
    on_record = store.record("tokenize_text.shard", key_of(document))
    assert on_record is not None and on_record["artifact"] == second
    assert len(notes) == (counts == "first"), "a part that another run made otherwise is reported"
