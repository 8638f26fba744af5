"""What the user's `format.make` is given of a row."""

from __future__ import annotations

from typing import Any

import pytest

from trnflow.tasks.artifact import Source
from trnflow.tasks.data.format import own_rows
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.row_makers import OWN_MAKERS
from trnflow.tasks.data.format.templates import no_limit


def test_labels_are_given_by_their_names_the_first_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_rows, "function_of", lambda code, hook: lambda row: f"{row['label']}: {row['body']}")
    code: Any = Source("code", {}, {})
    config = FormatConfig(task="classification", make="mine:plain")
    make = own_rows.own_make(config, code, (), ["red", "blue"], no_limit)
    rows = [{"body": "a", "label": 0}, {"body": "b", "label": 1}, {"body": "c", "label": None}]
    assert [make(row, "split train row 1") for row in rows] == [{"text": t} for t in ("red: a", "blue: b", "None: c")]


def test_a_row_without_an_answer_is_left_out_before_the_function_is_called() -> None:
    asked: list[Any] = []
    config, meta = FormatConfig(task="instruction", make="mine:asks"), {"columns": ["body", "response"], "text": []}

    def own(row: Any, where: str) -> Any:
        asked.append(row["body"])
        return {"text": f"Q: {row['body']} "}

    make = OWN_MAKERS["instruction"](config, meta, own)
    rows: list[dict[str, Any]] = [
        {"body": body, "response": response} for body, response in (("a", "yes"), ("b", " "), ("c", None))
    ]
    made = [make(row, "row") for row in rows]
    assert [row and "".join(part["text"] for part in row["parts"]) for row in made] == ["Q: a yes", None, None]
    assert asked == ["a"]
