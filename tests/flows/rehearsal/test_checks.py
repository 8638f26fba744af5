"""What a rehearsal says of the sample's columns, labels and texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trnflow.flows.recipes.recipe import load
from trnflow.flows.rehearsal.checks import check_disk, remarks_of, remarks_of_texts
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import StoreError


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


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 2), ("float32", 4)])
def test_the_published_model_and_its_export_must_fit_on_the_disk_beside_the_checkpoints(dtype: str, width: int) -> None:
    asked: list[tuple[int, int]] = []

    def check_space(needed: int, reserve: int) -> None:
        asked.append((needed, reserve))
        raise StoreError(f"this stage needs {needed} bytes, and there are 7", "free some space")

    store: Any = SimpleNamespace(check_space=check_space, backend=SimpleNamespace(local=True))
    recipe = load("demo", [f"consolidate.dtype={dtype}", "store.min_free_gb=3", "train.keep_checkpoints=2"])
    with pytest.raises(StoreError, match="^checkpoints, model and export need ") as error:
        check_disk(recipe, store, None, 1000)
    assert error.value.stage == "train" and str(error.value).startswith("checkpoints, model and export need ")
    assert asked == [(2 * width * 1000, 3_000_000_000)]
    memory: Any = SimpleNamespace(optimizer=8000)
    with pytest.raises(StoreError):
        check_disk(recipe.changed({"train.devices": 1, "train.zero1": False}), store, memory, 1000)
    assert asked[1][0] == 2 * width * 1000 + 2 * 12_000, "two checkpoints of moments and fp32 weights"
