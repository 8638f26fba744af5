"""The row that the model of a rehearsal answers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.data_stages import loaded_rows
from tests.helpers.small_models import workdir
from trnflow.tasks.artifact import Input
from trnflow.tasks.prediction import predict
from trnflow.tasks.rehearsal.answer import AnswerConfig, answer


def test_lists_of_a_row_are_read_and_those_that_it_lacks_stay_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"messages": [json.dumps([{"role": "user", "content": "hi"}]), "[]"], "tools": [None, "[]"]}
    rows, asked = loaded_rows(tmp_path, columns, nested=[*columns]), list[Any]()
    opened = SimpleNamespace(shape=SimpleNamespace(columns=("messages", "tools")))
    monkeypatch.setattr(predict, "open_model", lambda *_: opened)
    monkeypatch.setattr(predict, "predictions", lambda model, given, most: asked.extend(given) or [{"text": "so"}])
    out = workdir(tmp_path / "out")
    answer(AnswerConfig(), Input(tmp_path, "model", {}, "sha256:0"), rows, out)
    ((where, row),) = asked
    assert where == "row 1" and row["messages"] == [{"role": "user", "content": "hi"}] and row["tools"] is None
    assert json.loads((out.path / "answer.json").read_text()) == {"text": "so"}
