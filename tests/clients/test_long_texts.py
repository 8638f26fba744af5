"""A classifier of film reviews that are longer than its rows: the end counts, as its tokenizer says, in every program alike."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.clients.conftest import RunClient
from tests.helpers.command_line import InProcessShell
from trnflow.tasks.stage import read_json, write_json

RECIPE = """
extends: demo
name: mine
data: {source: reviews.parquet, name: null, text: text, label: label, labels: [neg, pos], split: {validation: 0.1, test: 0.2}}
model: {tokenizer: tokenizer, config: {type_vocab_size: 2}}
tokenize: {max_length: 48, train: null}
pack: {strategy: bucket, chunk_length: 48}
train: {engine: native, devices: 1, max_steps: 12, global_batch: 16}
export: {target: none}
evaluate: {export_rows: 0}
"""
SMALL = ("tracking.enabled=false", "--on", "cpu")
OWN = {
    "tokenizer_class": "BertTokenizer", "truncation_side": "left", "padding_side": "left", "model_max_length": 32,
    "do_lower_case": False, "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}  # fmt: skip
CLASSIFY = """
import json, sys, transformers
folder, texts = sys.argv[1], json.load(open(sys.argv[2]))
pipe = transformers.pipeline("text-classification", model=folder, device="cpu")
found = pipe(texts, truncation=True, top_k=None, batch_size=4)
print(json.dumps([{each["label"]: each["score"] for each in row} for row in found]))
"""


@pytest.mark.slow
def test_a_tokenizer_that_cuts_on_the_left_keeps_the_end_of_reviews_everywhere(
    tmp_path: Path, shared: Path, run_client: RunClient
) -> None:
    table = pq.read_table(shared / "data/imdb/train.parquet", columns=["text", "label"])
    pq.write_table(table.take([*range(0, 25000, 100)]), tmp_path / "reviews.parquet")
    texts = [text.replace("[", "(") for text in table.column("text").take([*range(50, 25000, 2500)]).to_pylist()]
    write_json(tmp_path / "tokenizer/tokenizer_config.json", OWN)
    words = (shared / "assets/bert-base-uncased/vocab.txt").read_text(encoding="utf-8")
    (tmp_path / "tokenizer/vocab.txt").write_text(words, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(RECIPE)
    shell = InProcessShell(tmp_path)
    notes = shell("run", "mine.yaml", "--direct", *SMALL).stderr
    assert "cut at their beginning, as the tokenizer's truncation_side says" in notes
    assert "model_max_length 32 -> 48, padding_side left -> right" in notes
    assert shell("get", "mine.yaml", "consolidate", "folder", *SMALL).returncode == 0
    ours = shell.json("predict", "mine.yaml", *SMALL, *texts)["results"]
    assert min(answer["cut"] for answer in ours) > 20
    ends = [text[text.index(" ", len(text) - 400) :] for text in texts]
    of_ends = shell.json("predict", "mine.yaml", *SMALL, *ends)["results"]
    for whole, end in zip(ours, of_ends, strict=True):
        assert whole["probabilities"] == pytest.approx(end["probabilities"], abs=1e-6)

    write_json(tmp_path / "texts.json", texts)
    for client in ("", "transformers-4.57"):
        theirs = run_client(client, CLASSIFY, tmp_path / "folder", tmp_path / "texts.json")
        for answer, found in zip(ours, theirs, strict=True):
            assert answer["label"] == max(found, key=found.__getitem__)
            assert answer["probabilities"] == pytest.approx(found, abs=1e-5)
    assert read_json(tmp_path / "folder/tokenizer_config.json")["do_lower_case"] is False
