"""Which options of `trnflow predict` go together, which columns they name, and what is said of texts that were cut; no model is
loaded."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trnflow.flows.cli.model import predict
from trnflow.flows.cli.model.predict import _check, _columns_in, _counted, _shown
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.events import log as writer
from trnflow.tasks.kinds.registry import kind_of


def options(**given: Any) -> Namespace:
    usual: dict[str, Any] = {
        "texts": [],
        "file": None,
        "out": None,
        "columns": None,
        "serve": False,
        "port": None,
        "json": False,
    }
    return Namespace(**{**usual, **given})


ROWS = Path("new.jsonl")


@pytest.mark.parametrize(
    "given",
    [
        {"texts": ["a"]}, {"file": ROWS}, {"texts": ["a"], "out": Path("out.csv")}, {"file": ROWS, "columns": ["id"]},
        {"serve": True}, {"serve": True, "port": 8000}, {"file": ROWS, "out": Path("-")},
        {"file": ROWS, "out": Path("out.jsonl"), "json": True},
    ],
)  # fmt: skip
def test_options_that_go_together(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "check_installed", lambda: None)
    _check(options(**given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "predict needs a text, or rows by --file"),
        ({"texts": ["a"], "file": ROWS}, "predict needs a text or --file, not both"),
        ({"texts": ["a"], "columns": ["id"]}, "--columns names columns of the rows in --file"),
        ({"texts": ["a"], "port": 8000}, "--port is the port of --serve"),
        *(({"serve": True, **more}, "--serve reads its texts from the page") for more in (
            {"texts": ["a"]}, {"file": ROWS}, {"out": Path("o")}, {"columns": ["id"]})),
        ({"file": ROWS, "out": Path("-"), "json": True}, "--out and --json both write to standard output"),
        ({"file": ROWS, "out": Path("out.json")}, "out.json ends in .json, which is no format"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        _check(options(**given))
    assert error.value.fix


def test_columns_stand_between_commas_unless_one_has_a_comma_in_its_name() -> None:
    assert _columns_in(["id, team", "note"], ["id", "team", "note"]) == ["id", "team", "note"]
    assert _columns_in(["name, first", "id"], ["name, first", "id"]) == ["name, first", "id"]
    assert _columns_in(["id,,"], ["id"]) == ["id"]


def test_texts_that_were_cut_and_empty_ones_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(predict, "say", lambda *lines: said.extend(lines))
    results: list[dict[str, Any]] = [
        {"label": "a"},
        {"label": "a", "cut": 3},
        {"label": "b", "cut": 1},
        {"remark": "the text is empty"},
    ]
    assert [*_counted(iter(results), 4)] == results
    assert [line[:60] for line in said] == [
        "note: 2 of 4 texts are too long for the model and were cut (",
        "note: 1 of 4 texts are empty and were not judged (`remark`)",
    ]
    said.clear()
    assert [*_counted(iter(results[:1]), 1)] == results[:1] and not said


def test_the_time_left_counts_that_of_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen = [100.0], []
    monkeypatch.setattr(writer, "present", lambda: now[0])
    monkeypatch.setattr(predict.Progress, "begin", lambda progress, at: seen.append(at))

    def in_batches() -> Iterator[dict[str, Any]]:
        for _ in range(3):
            now[0] += 10.0
            yield from ({"label": "a"} for _ in range(4))

    left = [seen[0].eta(now[0]) for _ in _counted(in_batches(), 12)]
    assert (left[3], left[7], left[11]) == (20.0, 10.0, 0.0)


def test_a_prediction_is_one_line_and_its_text_is_cut() -> None:
    kind: Any = SimpleNamespace(line=lambda result: "0.98  pos")
    assert _shown({"text": "a\n b"}, kind) == "0.98  pos  a b"
    assert _shown({"text": "x" * 60}, kind) == f"0.98  pos  {'x' * 60}"
    assert _shown({"text": "x" * 61}, kind) == f"0.98  pos  {'x' * 59}…"
    assert _shown({"text": " ", "remark": "the text is empty"}, kind) == "the text is empty  "
    assert _shown({"prompt": "Q: ", "generated": "A"}, kind_of("causal_lm")) == "Q: A\n"
