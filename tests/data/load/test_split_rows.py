"""Several sources as one dataset: shares, labels, columns, texts they share, and whose fault an error is."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.data.load.rows import failure, write
from tests.helpers.data_stages import files, table
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.load_data import DataConfig


def texts(name: str, count: int) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


@pytest.fixture
def two(tmp_path: Path) -> dict[str, str]:
    """`small` of 100 train and 10 test rows, `large` of 900, without a test split."""
    write(tmp_path / "small/train.jsonl", {"text": texts("small", 100)})
    write(tmp_path / "small/test.jsonl", {"text": texts("held out", 10)})
    write(tmp_path / "large/train.csv", {"text": texts("large", 900)})
    return {name: str(tmp_path / name) for name in ("small", "large")}


def mixed(two: dict[str, str], small: float | None = None, large: float | None = None) -> dict:
    return {"small": {"source": two["small"], "weight": small}, "large": {"source": two["large"], "weight": large}}


def sources(rows, split: str = "train") -> dict[str, int]:
    return dict(Counter(text.rsplit(" ", 1)[0] for text in table(rows, split)["text"]))


def test_without_weights_all_rows_are_taken(bench, two):
    rows = bench.rows(mix=mixed(two), text="text")
    assert rows.meta["sources"] == {"train": {"large": 900, "small": 100}, "test": {"small": 10}}
    assert rows.meta["splits"] == {"train": 1000, "test": 10}
    assert sources(rows) == {"large": 900, "small": 100}
    assert sources(rows, "test") == {"held out": 10}
    firsts = [text.split()[0] for text in table(rows, "train")["text"][:20]]
    assert firsts.count("small") == 2


def test_weights_are_shares_of_train(bench, two):
    rows = bench.rows(mix=mixed(two, 0.25, 0.75), text="text")
    assert rows.meta["sources"]["train"] == sources(rows) == {"large": 300, "small": 100}
    assert rows.meta["dropped"] == {"mix": 600}
    assert len(set(table(rows, "train")["text"])) == 400
    assert [said["info"] for said in bench.said if "info" in said] == [
        "rows dropped: 600 mix",
        "train is 300 rows of large (75.0%), 100 rows of small (25.0%)",
    ]


def test_all_exhausted_repeats_the_scarce_source(bench, two):
    rows = bench.rows(mix=mixed(two, 1, 2), text="text", stopping_strategy="all_exhausted")
    assert rows.meta["sources"]["train"] == sources(rows) == {"large": 900, "small": 450}
    assert rows.meta["dropped"] == {}
    times = Counter(text for text in table(rows, "train")["text"] if text.startswith("small"))
    assert set(times.values()) == {4, 5}
    assert "rows repeated: small 4.5 times" in [said.get("info") for said in bench.said]


def test_a_limit_keeps_the_shares_and_seeds_choose_the_rows(bench, two):
    both = mixed(two, 0.25, 0.75)
    rows = bench.rows(mix=both, text="text", limit={"train": 40})
    assert rows.meta["sources"]["train"] == {"large": 30, "small": 10}
    assert rows.meta["dropped"] == {"mix": 600, "limit": 360}
    again = bench.rows(mix=dict(reversed(both.items())), text="text", limit={"train": 40})
    assert files(again.path) == files(rows.path)
    other = bench.rows(mix=both, text="text", limit={"train": 40}, shuffle_seed=1)
    assert set(table(other, "train")["text"]) != set(table(rows, "train")["text"])
    wider = bench.rows(mix=both, text="text", limit={"train": 80})
    assert set(table(rows, "train")["text"]) < set(table(wider, "train")["text"])


def test_each_source_makes_the_splits_that_it_lacks(bench, two):
    rows = bench.rows(mix=mixed(two), text="text", split={"test": 0.2})
    held = rows.meta["sources"]["test"]
    assert held["small"] == 10 and 130 < held["large"] < 230
    assert [text.split()[0] for text in table(rows, "test")["text"]] == ["large"] * held["large"] + ["held"] * 10
    assert rows.meta["sources"]["train"] == {"large": 900 - held["large"], "small": 100}


def test_dedupe_and_leakage_across_sources(bench, tmp_path):
    write(tmp_path / "a/train.csv", {"text": ["one", "two", "two", "three"]})
    write(tmp_path / "b/train.csv", {"text": ["three", "four", "five"]})
    write(tmp_path / "b/test.csv", {"text": ["one", "five"]})
    mix = {name: {"source": str(tmp_path / name)} for name in ("a", "b")}
    as_it_is = bench.rows(mix=mix, text="text")
    assert as_it_is.meta["leakage"] == {"train/test": 2}
    assert as_it_is.meta["overlap"] == {"a/b": 1}
    assert "2 of train also in test" in bench.warnings()[0]
    rows = bench.rows(mix=mix, text="text", dedupe=True)
    assert rows.meta["dropped"] == {"duplicate": 2, "leaked": 2}
    assert rows.meta["sources"] == {"train": {"a": 2, "b": 1}, "test": {"b": 2}}
    assert sorted(table(rows, "train")["text"]) == ["four", "three", "two"]


def test_names_of_columns_and_labels_differ(bench, tmp_path):
    write(tmp_path / "a.csv", {"text": ["fine", "poor"], "label": ["pos", "neg"]})
    write(tmp_path / "b.jsonl", {"headline": ["great", "bad"], "stars": [5, 1]})
    mix = {
        "a": {"source": str(tmp_path / "a.csv")},
        "b": {"source": str(tmp_path / "b.jsonl"), "text": "headline", "label": "stars >= 3", "labels": ["neg", "pos"]},
    }
    rows = bench.rows(mix=mix, label="label")
    assert rows.meta["labels"] == ["neg", "pos"]
    assert rows.meta["columns"] == ["text", "label"]
    assert table(rows, "train") == {"text": ["fine", "great", "poor", "bad"], "label": [1, 1, 0, 0]}
    more = bench.rows(mix=mix, label="label", labels=["pos", "neutral", "neg"])
    assert table(more, "train")["label"] == [0, 0, 2, 2]
    told = failure(bench, ConfigError, mix=mix | {"b": mix["b"] | {"labels": ["bad", "good"]}}, label="label")
    assert told.startswith(
        "data.mix: b has the labels bad, good, a neg, pos. Fix: name them alike with data.mix.b.labels"
    )
    unlabelled = {name: {"source": one["source"]} for name, one in mix.items()} | {"a": mix["a"] | {"label": "label"}}
    unlabelled["b"]["text"] = "headline"
    assert "data.mix.b has no label, and a has" in failure(bench, ConfigError, mix=unlabelled)


def test_a_column_that_one_source_lacks_is_null_there(bench, tmp_path):
    write(tmp_path / "a.jsonl", {"instruction": ["do"], "context": ["where"], "response": ["done"]})
    write(tmp_path / "b.jsonl", {"prompt": ["ask"], "response": ["told"]})
    mix = {
        "a": {"source": str(tmp_path / "a.jsonl")},
        "b": {"source": str(tmp_path / "b.jsonl"), "columns": {"instruction": "prompt", "response": "response"}},
    }
    rows = bench.rows(mix=mix)
    assert table(rows, "train")["context"] == ["where", None]
    assert table(rows, "train")["instruction"] == ["do", "ask"]
    assert bench.texts(rows, task="instruction").meta["splits"] == {"train": 2}
    write(tmp_path / "b.jsonl", {"prompt": [1], "response": ["told"]})
    told = failure(bench, DataError, mix=mix)
    assert "split train: the column instruction is string in a and int64 in b" in told


def test_errors_name_the_source(bench, two, tmp_path):
    nowhere = mixed(two) | {"large": {"source": str(tmp_path / "none")}}
    assert "data.mix.large.source: there is no data at" in failure(bench, ConfigError, mix=nowhere)
    column = mixed(two) | {"small": {"source": two["small"], "text": "txt"}}
    told = failure(bench, ConfigError, mix=column, text="text")
    assert told.startswith("data.mix.small.text: train.jsonl has no column txt. Fix: did you mean text?")
    write(tmp_path / "small/train.jsonl", {"text": ["x", None]})
    told = failure(bench, DataError, mix=mixed(two), text="text")
    assert told.startswith("data.mix.small: split train, train.jsonl row 2: the text column text is missing (null)")
    write(tmp_path / "small/train.jsonl", {"text": ["held out 1"]})
    told = failure(bench, DataError, mix=mixed(two), text="text", dedupe=True)
    assert "the source small has no rows of train left" in told


def test_identity_is_that_of_all_sources_and_no_place(bench, two, tmp_path):
    config = DataConfig(mix=mixed(two), text="text", split={})
    source = bench.source(config)
    assert {name: sorted(one) for name, one in source.identity["mix"].items()} == {
        "large": ["files"],
        "small": ["files"],
    }
    assert str(tmp_path) not in json.dumps(source.identity)
    alone = bench.source(DataConfig(source=two["small"], text="text"))
    assert source.identity["mix"]["small"] == alone.identity
    write(tmp_path / "large/train.csv", {"text": texts("other", 900)})
    changed = bench.source(config)
    assert changed.identity["mix"]["large"] != source.identity["mix"]["large"]
    assert changed.identity["mix"]["small"] == source.identity["mix"]["small"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, "`source` is missing"),
        ({"mix": {"a": {"source": "x"}}}, "`mix` needs two sources or more"),
        ({"mix": {"a": {"source": "x"}, "b": {"source": "y"}}, "source": "z"}, "set it for each source in `mix`"),
        ({"mix": {"a": {"source": "x"}, "b/c": {"source": "y"}}}, "made of letters, digits"),
        ({"mix": {"a": {"source": "x"}, "b": {"weight": 1}}}, "mix.b has no `source`"),
        ({"mix": {"a": {"source": "x", "weight": 1}, "b": {"source": "y"}}}, "mix.b has no `weight`"),
        ({"mix": {"a": {"source": "x", "weight": 0}, "b": {"source": "y"}}}, "greater than 0"),
        ({"source": "x", "stratify": True}, "`stratify` needs a label"),
        ({"source": "x", "split": {"validation": 0.5, "test": 0.5}}, "leave nothing to train on"),
        ({"source": "x", "labels": ["a", "b"]}, "`labels` is set without `label`"),
        ({"source": "x", "label": "l", "labels": ["a", "a"]}, "at least two names, each once"),
        ({"source": "x", "splits": {"tests": "y"}}, "Input should be 'train', 'validation' or 'test'"),
    ],
)
def test_settings_that_do_not_fit(wrong, told):
    with pytest.raises(ValidationError, match=told):
        DataConfig(**wrong)


def test_real_sets_mix(bench, shared):
    mix = {
        "films": {"source": str(shared / "data/imdb"), "labels": ["neg", "pos"], "weight": 0.8},
        "books": {
            "source": str(shared / "data/amazon_books"),
            "text": "review_text",
            "label": "rating >= 4",
            "labels": ["neg", "pos"],
            "weight": 0.2,
        },
    }
    rows = bench.rows(mix=mix, label="label", limit={"train": 1000, "test": 500}, split={"test": 0.1})
    assert rows.meta["sources"]["train"] == {"books": 200, "films": 800}
    labels = table(rows, "train")["label"]
    assert 0.4 < sum(labels) / len(labels) < 0.6
