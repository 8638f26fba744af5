"""What a plan knows of rows before a run, how many an earlier artifact had and how long the longest will be, and what it says
of changes."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.stores import new_store
from trnflow.flows.runner import reasons
from trnflow.flows.runner.code_parts import PARTS, parts_of
from trnflow.flows.runner.memory_check import _longest
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.keys.explain import ValueChange


def test_rows_that_loading_dropped_were_rows_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = {"splits": {"train": 7, "test": 2}, "dropped": {"limit": 30, "empty": 1}}
    monkeypatch.setattr(reasons, "checked_artifact", lambda *given: SimpleNamespace(meta=meta))
    record: Any = {"document": {"stage": "load_data"}, "artifact": "sha256:1"}
    assert reasons._rows_of(None, record) == 40  # type: ignore[arg-type]


def file_change(*changed: str, places: Any = ("train.csv", "test.csv"), **more: Any) -> tuple[Any, Any]:
    """The source of rows, and how its files differ from those of a record. changed: names; more: of the new ones."""
    before = [{"split": name[:-4], "format": "csv", "digest": "old"} for name in ("train.csv", "test.csv")]
    after = [
        {**old, **({"digest": "new"} if name in changed else {}), **more}
        for old, name in zip(before, places, strict=True)
    ]
    source = SimpleNamespace(location={"files": [{"name": name} for name in places]})
    return source, ValueChange("inputs", "source.files", before, after)


@pytest.mark.parametrize(
    ("past", "now", "said"),
    [
        (100, 1203, "train.csv: 1,103 rows more"),
        (100, 99, "train.csv: 1 row fewer"),
        (100, 100, "train.csv: rows changed, as many as before"),
        (None, 100, "train.csv changed"),
        (100, None, "train.csv changed"),
    ],
)
def test_files_are_told_by_the_rows_that_came_or_went(
    past: int | None, now: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reasons, "_rows_of", lambda *_: past)
    monkeypatch.setattr(reasons, "_rows_in", lambda *_: now)
    source, change = file_change("train.csv")
    store: Any = None
    record: Any = {}
    assert reasons.in_words(store, source, record, [change]) == [said]
    both, change = file_change("train.csv", "test.csv")
    (text,) = reasons.in_words(store, both, record, [change])
    assert text == said.replace("train.csv", "train.csv, test.csv")
    other, change = file_change("train.csv", format="jsonl")
    assert reasons.in_words(store, other, record, [change]) == [str(change)], "not the same files"


BEFORE = """
RATE = 1
KEY = "sk-abcdefghij0123456789"
def make(row): return row
def gone(row): return row
"""
AFTER = """
RATE = 2
KEY = "sk-zyxwvutsrq9876543210"
def make(row): return None
def new(row): return row
"""


def test_the_parts_of_own_code_are_told_by_name_without_secrets(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    for value, text in (("h1", BEFORE), ("h2", AFTER)):
        store.memo.put(PARTS, value, "", {"file": "mine.py", "parts": parts_of(ast.parse(text))})
    record: Any = {}
    change = ValueChange("code", "mine", "h1", "h2")
    told = reasons.in_words(store, None, record, [change])
    assert told == [
        "RATE in mine.py: 1 -> 2", "make in mine.py changed", "new in mine.py is new", "gone in mine.py is gone", str(change),
    ]  # fmt: skip
    unknown = ValueChange("code", "mine", "h0", "h2")
    assert reasons.in_words(store, None, record, [unknown]) == [str(unknown)]


def test_of_many_changes_two_are_told_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        reasons, "nearest_record", lambda records, document: (records[0], ["changes"]) if records else None
    )
    record: Any = {}
    document: Any = {}
    for texts, said in ((["a"], "a"), (["a", "b"], "a; b"), (["a", "b", "c", "d"], "a; b and 2 more")):
        assert reasons.nearest_changes([record], document, lambda near, changes, texts=texts: texts) == said  # type: ignore[misc]
    assert reasons.nearest_changes([], document, lambda near, changes: ["never"]) == ""


@pytest.mark.parametrize(
    ("form", "longest"),
    [
        ({"task": "classification"}, 64),
        ({"task": "embedding", "text_pair": "b"}, 128),
        ({"task": "embedding", "text_pair": "b", "negative": "c"}, 192),
    ],
)
def test_texts_that_are_read_apart_are_one_row(form: dict[str, Any], longest: int) -> None:
    pack = SimpleNamespace(strategy="bucket", lengths=None, chunk_length=512)
    recipe: Any = SimpleNamespace(pack=pack, format=FormatConfig(**form), tokenize=SimpleNamespace(max_length=64))
    assert _longest(recipe) == (longest, True)
