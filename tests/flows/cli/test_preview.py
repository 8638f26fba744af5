"""Preview: what the tokens say, not what the rows said; the supervised part apart."""

from __future__ import annotations

import csv
import json
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.helpers.command_line import InProcessShell
from trnflow.flows.cli.preview import print_rows
from trnflow.tasks.artifact import Input
from trnflow.tasks.data.format.preview import Row, Span, preview, spans_of

TEXT = "What does it do? Größe: zählt – 3 × 4 naïve words, 日本語 and 🙂 ends."


@lru_cache
def tokenizer() -> Tokenizer:
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator([TEXT], trainers.BpeTrainer(initial_alphabet=alphabet, vocab_size=300))
    return found


@given(st.text(min_size=1, max_size=40), st.data())
def test_the_spans_are_the_whole_text_cut_where_the_mask_changes(text: str, data: st.DataObject) -> None:
    words = [f"{text} ", *TEXT.split(" ")]
    flags = data.draw(st.lists(st.booleans(), min_size=len(words), max_size=len(words)))
    encoded = [tokenizer().encode(word).ids for word in words]
    ids = np.array([token for word in encoded for token in word], np.int32)
    mask = np.array([flag for word, flag in zip(encoded, flags, strict=True) for _ in word], np.uint8)
    spans = spans_of(tokenizer(), ids, mask)
    assert "".join(span.text for span in spans) == tokenizer().decode(ids.tolist(), skip_special_tokens=False)
    assert [span.train for span in spans] == [flag for at, flag in enumerate(flags) if at == 0 or flag != flags[at - 1]]
    supervised = "".join(word for word, flag in zip(words, flags, strict=True) if flag)
    assert "".join(span.text for span in spans if span.train) == supervised


def test_a_recipe_s_rows_as_the_model_reads_them(tmp_path: Path) -> None:
    trnflow = InProcessShell(tmp_path)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["instruction", "response"])
        writer.writerows([f"What is {n} plus one?", f"It is {n + 1}, naturally."] for n in range(40))
    recipe = ("preview", "demo-llm", "2", "data.source=rows.csv", "data.split={validation: 0.2}")
    done = trnflow(*recipe, "--json")
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["rows"]
    prompt, answer = first["spans"]
    assert prompt["train"] is False and prompt["text"].startswith("<s>### Instruction\nWhat is ")
    assert prompt["text"].endswith("### Answer\n")
    assert answer["train"] is True and answer["text"].startswith("It is ") and answer["text"].endswith("naturally.</s>")
    assert (first["number"], second["number"]) == (1, 2)
    assert 0 < first["supervised"] < first["tokens"]
    assert f"{prompt['text']}⟦{answer['text']}⟧" in trnflow(*recipe).stdout
    assert json.loads(trnflow("runs", "--json").stdout)["runs"] == []
    assert "== tokenize_text ==" in trnflow("logs").stdout
    wrong = trnflow(*recipe, "--split", "trian")
    assert wrong.returncode == 2 and "there is no split trian" in wrong.stderr


@pytest.mark.parametrize(
    ("row", "said"), [(Row(1, 3, 0, (Span("[CLS] x [SEP]", False),), "joy"), "3 tokens, label joy")]
)
def test_a_classified_row_shows_its_label_and_brackets_in_texts_are_no_markup(row: Row, said: str) -> None:
    stream = StringIO()
    print_rows([row], stream)
    assert said in stream.getvalue() and "[CLS] x [SEP]" in stream.getvalue()


@pytest.mark.parametrize(
    ("task", "labels", "supervised", "shown"),
    [
        ("classification", [1, 0], [0, 0], ["B-name", "O"]),
        ("token_classification", [-100, 1, -100, 0, 0, -100], [1, 2], ["name 1", "no entity"]),
    ],
)
def test_the_label_of_a_row_or_of_its_words_is_beside_it(
    tmp_path: Path, task: str, labels: list[int], supervised: list[int], shown: list[str]
) -> None:
    for folder in ("tokenizer", "train"):
        (tmp_path / folder).mkdir()
    tokenizer().save(str(tmp_path / "tokenizer/tokenizer.json"))
    arrays = {"offsets": [0, 3, 6], "input_ids": [5, 6, 7, 8, 9, 10], "labels": labels}
    for name, values in arrays.items():
        np.save(tmp_path / f"train/{name}.npy", np.array(values, np.int64 if name == "offsets" else np.int32))
    meta: Any = {"task": task, "labels": ["O", "B-name"], "splits": {"train": 2}}
    found = preview(Input(tmp_path, "tokens", meta, ""), "train", 5)
    assert [(row.number, row.tokens) for row in found] == [(1, 3), (2, 3)]
    assert [row.supervised for row in found] == supervised and [row.label for row in found] == shown
