"""What a rehearsal says of the sample's columns, labels and texts."""

from __future__ import annotations

from typing import Any

from trnflow.flows.recipes.recipe import load
from trnflow.flows.rehearsal.checks import remarks_of, remarks_of_texts
from trnflow.tasks.artifact import Artifact


def artifact(kind: str, **meta: Any) -> Artifact:
    return Artifact("sha256:0", kind, meta, ())


def test_labels_that_train_lacks_are_named_by_their_split() -> None:
    counts = {
        "train": {"glad": 5, "sad": 0, "cross": 0},
        "validation": {"glad": 2, "sad": 0, "cross": 0},
        "test": {"glad": 0, "sad": 1, "cross": 2},
    }
    rows = artifact(
        "rows", columns=["text", "label"], text=["text"], labels=["glad", "sad", "cross"], label_counts=counts
    )
    said = [remark for remark in remarks_of(load("demo"), rows) if "labels" in remark]
    assert said == ["test has labels of which train has no row: sad, cross"]


def test_rows_that_are_left_out_or_too_long_are_counted() -> None:
    texts = artifact(
        "texts", dropped={"no answer": 3, "too long": 0}, splits={"train": 20, "test": 12}, fields=["text"]
    )
    tokens = artifact("tokens", overlong={"train": 4, "test": 1})
    said = [*remarks_of_texts(load("demo"), texts, tokens)][-2:]
    assert said == [
        "rows left out of the sample: 3 no answer",
        "5 of 32 texts of the sample are longer than tokenize.max_length",
    ]
    whole = artifact("texts", dropped={"no answer": 0}, splits={"train": 20}, fields=["text"])
    assert [*remarks_of_texts(load("demo"), whole, artifact("tokens", overlong={"train": 0}))] == []
