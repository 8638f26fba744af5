"""What is known of rows before a run: how many an earlier artifact had, and how long the longest will be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trnflow.flows.runner import reasons
from trnflow.flows.runner.memory_check import _longest
from trnflow.tasks.data.format.config import FormatConfig


def test_rows_that_loading_dropped_were_rows_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = {"splits": {"train": 7, "test": 2}, "dropped": {"limit": 30, "empty": 1}}
    monkeypatch.setattr(reasons, "checked_artifact", lambda *given: SimpleNamespace(meta=meta))
    record: Any = {"document": {"stage": "load_data"}, "artifact": "sha256:1"}
    assert reasons._rows_of(None, record) == 40  # type: ignore[arg-type]


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
