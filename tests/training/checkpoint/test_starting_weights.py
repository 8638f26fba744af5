"""Weights of an earlier model in place of the source's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.toys import BERT, packed_classes, packed_lm, scratch
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.checkpoint import shards
from trnflow.tasks.training.checkpoint.starting_weights import load_start, starting_from
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.own_head import remarks_of_start
from trnflow.tasks.training.shared_types import PARAMETER, Built, TensorSlice

SOURCE = scratch(**BERT)


@pytest.fixture
def packed(tmp_path: Path) -> Input:
    return packed_classes(tmp_path / "packed")


def built_from(source: Source, packed: Input, seed: int = 1) -> Built:
    found = build(source, packed, seed=seed, weights=True)
    load_start(source, found.model)
    return found


def checkpoint_of(built: Built, folder: Path) -> Input:
    slices = [
        TensorSlice(PARAMETER + n, 0, (0,) * p.dim(), tuple(p.shape), p.detach()) for n, p in built.parameters().items()
    ]
    shards.write(folder, slices, {})
    return Input(folder, "checkpoint", {}, "sha256:checkpoint")


def saved(built: Built, folder: Path) -> Input:
    built.model.save_pretrained(folder)
    return Input(folder, "model", {}, "sha256:model")


@pytest.mark.parametrize("kept", [checkpoint_of, saved])
def test_it_starts_with_the_very_weights(kept, packed: Input, tmp_path: Path) -> None:
    first = built_from(SOURCE, packed, seed=5)
    again = built_from(starting_from(SOURCE, kept(first, tmp_path / "kept")), packed)
    other = built_from(SOURCE, packed)
    for name, parameter in first.parameters().items():
        assert torch.equal(again.parameters()[name], parameter)
    assert not torch.equal(other.parameters()["classifier.weight"], first.parameters()["classifier.weight"])
    assert starting_from(SOURCE, None) is SOURCE


def test_a_head_of_other_labels_is_made_anew(packed: Input, tmp_path: Path) -> None:
    first = built_from(SOURCE, packed, seed=5)
    start = starting_from(SOURCE, saved(first, tmp_path / "kept"))
    fewer = Input(packed.path, packed.kind, packed.meta | {"labels": ["red", "green"]}, packed.digest)
    again = built_from(start, fewer)
    assert again.lacking == ("classifier.bias", "classifier.weight")
    word = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(again.parameters()[word], first.parameters()[word])


def test_another_model_is_refused(packed: Input, tmp_path: Path) -> None:
    first = built_from(SOURCE, packed)
    wider = scratch(**{**BERT, "hidden_size": 64})
    with pytest.raises(ModelError, match=r"embeddings.weight is \(64, 32\), and \(64, 64\) here"):
        built_from(starting_from(wider, checkpoint_of(first, tmp_path / "a")), packed)
    with pytest.raises(ModelError, match="the weights of train.warm_start_from lack"):
        built_from(starting_from(wider, saved(first, tmp_path / "b")), packed)
    with pytest.raises(ModelError, match="is not there, and"):
        llama = scratch(model_type="llama", hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        built_from(starting_from(llama, checkpoint_of(first, tmp_path / "c")), packed_lm(tmp_path / "lm"))


@pytest.mark.parametrize(("kind", "place"), [("checkpoint", "checkpoint"), ("model", "folder")])
def test_a_source_says_that_its_weights_are_those_of_a_warm_start(tmp_path: Path, kind: str, place: str) -> None:
    started = starting_from(SOURCE, Input(tmp_path, kind, {}, "sha256:w"))
    assert started.location == {**SOURCE.location, "model": {place: str(tmp_path)}, "warm_start": "sha256:w"}
    assert started.identity["weights"] == (None if kind == "checkpoint" else "sha256:w")
    assert starting_from(SOURCE, None) is SOURCE


@pytest.mark.parametrize(
    ("own", "labels", "remark"),
    [
        (["good", "bad"], ["bad", "good"], "begins with them exchanged: set data.labels=[good, bad]"),
        (["bad", "good"], ["bad", "good"], ""),
        (["a", "b"], ["bad", "good"], "the model's labels a, b are replaced by bad, good"),
        (["bad"], ["bad", "good"], "has 1 labels, and the rows have 2: its head begins anew"),
        (None, ["bad", "good"], ""),
    ],
)
def test_a_head_that_learnt_other_labels_is_remarked(own: list[str] | None, labels: list[str], remark: str) -> None:
    """With two labels exchanged an accuracy of 1 became 0 without a word."""
    said = [*remarks_of_start({"labels": own}, {"task": "classification", "labels": labels})]
    assert [remark in text for text in said] == [True] * bool(remark)
    assert [*remarks_of_start({"labels": ["a", "b"]}, {"task": "embedding", "labels": ["anchor", "positive"]})] == []
