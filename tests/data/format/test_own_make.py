"""What the user's `format.make` is given of a row."""

from __future__ import annotations

from typing import Any

import pytest

from trnflow.tasks.artifact import Source
from trnflow.tasks.data.format import own_rows
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.templates import no_limit


def test_labels_are_given_by_their_names_the_first_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_rows, "function_of", lambda code, hook: lambda row: f"{row['label']}: {row['body']}")
    code: Any = Source("code", {}, {})
    config = FormatConfig(task="classification", make="mine:plain")
    make = own_rows.own_make(config, code, (), ["red", "blue"], no_limit)
    rows = [{"body": "a", "label": 0}, {"body": "b", "label": 1}, {"body": "c", "label": None}]
    assert [make(row, "split train row 1") for row in rows] == [{"text": t} for t in ("red: a", "blue: b", "None: c")]
