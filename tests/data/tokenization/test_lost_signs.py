"""What a tokenizer takes off texts though their labels depend on it: remarked of capitals, and of no real set."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.data.load.rows import write
from tests.helpers.data_stages import Bench, new_bench

WORDS = ["polish", "turkey", "china", "apple", "may", "march", "rose", "bill", "will", "mark", "frank", "grace", "hope"]


def warnings_of(bench: Bench, splits: dict[str, dict[str, list[str]]], vocab: Path) -> list[str]:
    for split, columns in splits.items():
        write(bench.root / f"data/{split}.csv", columns)
    read = bench.rows(source=str(bench.root / "data"), text="text", label="label")
    texts = bench.texts(read, task="classification")
    before = len(bench.warnings())
    bench.tokens(texts, {"config": {"model_type": "bert"}, "tokenizer": str(vocab)})
    return bench.warnings()[before:]


@pytest.mark.parametrize("noise", [False, True])
def test_labels_that_capitals_decide(tmp_path: Path, shared: Path, noise: bool) -> None:
    """Names and words, of which an uncased tokenizer makes the same; of texts that mostly have one label, however they are
    written, nothing is said."""
    bench = new_bench(tmp_path / "bench")
    bench.root.mkdir()
    rows = [(word, "word") for word in WORDS] + [
        (word.title(), "word" if noise and n > 4 else "name") for n, word in enumerate(WORDS)
    ]
    columns = {"text": [f"{word} {word}" for word, _ in rows], "label": [label for _, label in rows]}
    told = [
        warning
        for warning in warnings_of(bench, {"train": columns}, shared / "assets/bert-base-uncased")
        if "tells them" in warning
    ]
    assert len(told) == (not noise)
    if told:
        assert told[0].startswith(
            "26 texts of train have the tokens of a text with another label, such as 'Polish Polish' (name) and"
        )


def test_accents_that_the_tokenizer_takes_off_are_no_remark(tmp_path: Path, shared: Path) -> None:
    bench = new_bench(tmp_path / "bench")
    bench.root.mkdir()
    texts = [f"le café déjà vu {n}" for n in range(40)]
    splits = {
        split: {"text": [unicodedata.normalize(form, text) for text in texts], "label": ["a", "b"] * 20}
        for split, form in (("train", "NFC"), ("test", "NFD"))
    }
    assert not [
        warning for warning in warnings_of(bench, splits, shared / "assets/bert-base-uncased") if "accents" in warning
    ]


@pytest.mark.parametrize("name", ["emotion", "imdb"])
def test_no_real_set_is_remarked(tmp_path: Path, shared: Path, name: str) -> None:
    bench = new_bench(tmp_path / "bench")
    bench.root.mkdir()
    rows = pq.read_table(shared / f"data/{name}/train.parquet").slice(0, 400).to_pydict()
    columns = {"text": rows["text"], "label": [f"is {label}" for label in [*rows["label"][:-1], 1]]}
    assert not [
        warning
        for warning in warnings_of(bench, {"train": columns}, shared / "assets/bert-base-uncased")
        if "tells" in warning
    ]
