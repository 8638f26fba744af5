"""Rows that are cut, divided, dropped or left without a target are counted as what they are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.data_stages import Bench, loaded_rows
from trnflow.tasks.artifact import Input

MOST = 24
ROWS = {
    "prompt": ["What is red? ", "What is blue? ", "What is red? " * 20],
    "answer": ["A rose.", "The sky is blue and so is the sea. " * 6, "Yes."],
}
"""A short row, one whose answer is too long, and one whose prompt is."""


def tokens(bench: Bench, shared: Any, **settings: Any) -> Input:
    model = {"source": str(shared / "assets/stories260K-hf")}
    templates = {"prompt_template": "{{ prompt }}", "response_template": "{{ answer }}"}
    texts = bench.texts(loaded_rows(bench.root, ROWS), model, task="instruction", **templates)
    return bench.tokens(texts, model, max_length=MOST, **settings)


@pytest.mark.parametrize(
    ("overlong", "truncated", "unsupervised", "dropped"),
    [("truncate", 2, 1, {"unsupervised": 1}), ("drop", 0, 0, {"overlong": 2})],
)
def test_rows_are_lost_in_one_way(
    bench: Bench, shared: Any, overlong: str, truncated: int, unsupervised: int, dropped: dict[str, int]
) -> None:
    meta = tokens(bench, shared, overlong=overlong).meta
    assert meta["overlong"] == {"train": 2} and meta["truncated"] == {"train": truncated}
    assert meta["unsupervised"] == {"train": unsupervised} and meta["dropped"] == dropped
    assert meta["splits"] == {"train": 3 - sum(dropped.values())} and meta["longest"] <= MOST


def test_rows_that_are_divided_are_not_cut(bench: Bench, shared: Any) -> None:
    meta = tokens(bench, shared, overlong="split").meta
    assert (meta["overlong"], meta["truncated"], meta["unsupervised"]) == ({"train": 2}, {"train": 0}, {"train": 0})
    assert meta["dropped"]["unsupervised"] > 1 and "overlong" not in meta["dropped"] and meta["longest"] == MOST


def test_no_end_is_missed_where_none_is_wanted(bench: Bench, shared: Any) -> None:
    meta = tokens(bench, shared, overlong="drop", add_eos=False).meta
    assert "unended" not in meta and meta["ends"] == []
