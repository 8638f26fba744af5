"""Losses of frozen rows beside transformers' own, also of rows that are longer than what a model reads at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.helpers import small_models
from tests.helpers.data_stages import new_bench, table
from trnflow.tasks.artifact import Input
from trnflow.tasks.promotion.score_rows import ScoreConfig, score_rows

POSITIONS = 64


@pytest.mark.parametrize(("window", "has_bos"), [(64, True), (8, True), (8, False), (1000, True)])
def test_each_token_after_the_first_is_predicted_once(window: int, has_bos: bool, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    bench, draw = new_bench(tmp_path), np.random.default_rng(5)
    weights = small_models.llama(tmp_path / "llama")
    if not has_bos:
        made = json.loads((weights.path / "tokenizer.json").read_text())
        (weights.path / "tokenizer.json").write_text(json.dumps({**made, "post_processor": None}))
    sizes = [2, 3, 7, 8, 9, 15, 16, 30, 90]
    rows = [{"text": " ".join(draw.choice(small_models.WORDS, size))} for size in sizes]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    texts = bench.texts(bench.rows(source=str(tmp_path), dedupe=False), task="text")
    model = {"tokenizer": str(weights.path), "config": {"model_type": "llama"}}
    tokens = bench.tokens(texts, model, max_length=128, add_eos=False)
    out, step = bench.workdir(), min(window, POSITIONS) - 1
    score_rows(ScoreConfig(window=window), texts, tokens, weights, out)

    found = pq.read_table(out.path / "scores.parquet").to_pylist()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(weights.path / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(weights.path).eval()
    # nothing predicts what a row begins with
    assert [row["tokens"] for row in found] == [size - (not has_bos) for size in sizes]
    for row, parts in zip(found, table(texts, "test")["parts"], strict=True):
        text = parts[0]["text"]
        ids = [1] * has_bos + tokenizer(text, add_special_tokens=False)["input_ids"]
        whole = 0.0
        for start in range(0, len(ids) - 1, step):
            labels = torch.tensor([ids[start : start + step + 1]])
            with torch.no_grad():
                whole += float(model(input_ids=labels, labels=labels).loss) * (labels.shape[1] - 1)
        assert row["nll"] == pytest.approx(whole, rel=1e-4)
        assert row["bytes"] == len(text) - (0 if has_bos else text.index(" "))


SIZES = [9, 5, 14, 6, 30, 4]


def given_rows(root: Path, weights: Input, **arrays: Any) -> tuple[Input, Input, list[list[int]]]:
    """Texts and tokens of a test split, of these sizes, and the token ids of each row."""
    draw = np.random.default_rng(7)
    rows = [draw.integers(4, small_models.VOCABULARY, size) for size in SIZES]
    folder = root / "tokens/test"
    folder.mkdir(parents=True)
    offsets = np.cumsum([0, *SIZES])
    for name, values in {"input_ids": np.concatenate(rows).astype(np.int32), "offsets": offsets, **arrays}.items():
        np.save(folder / f"{name}.npy", values)
    meta = {"task": weights.meta["task"], "labels": weights.meta["labels"], "splits": {"test": len(rows)}, "pad_id": 0}
    texts = Input(root / "texts", "texts", {"splits": {"test": len(rows)}}, "sha256:texts")
    return texts, Input(folder.parent, "tokens", meta, "sha256:tokens"), [row.tolist() for row in rows]


def test_labels_of_a_row_are_decided_by_the_model_s_threshold(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    weights = small_models.bert(tmp_path / "bert")
    weights.meta["task"] = "multi_label"
    rows: dict[str, Any] = {
        "settings": {"task": "multi_label", "target": "labels"},
        "text": [],
        "columns": [],
        "nested": [],
    }
    document = {"format": "trnflow-model", "version": 1, "task": "multi_label", "rows": rows, "max_length": 64}
    (weights.path / "trnflow.json").write_text(json.dumps({**document, "decision": {"threshold": 0.75}}))
    expected = (np.random.default_rng(2).random((len(SIZES), 3)) < 0.5).astype(np.float32)
    texts, tokens, ids = given_rows(tmp_path, weights, labels=expected)
    out = new_bench(tmp_path).workdir()
    score_rows(ScoreConfig(window=64), texts, tokens, weights, out)

    model = AutoModelForSequenceClassification.from_pretrained(weights.path).eval()
    with torch.no_grad():
        likely = np.stack([model(torch.tensor([row])).logits[0].sigmoid().numpy() for row in ids])
    found = pq.read_table(out.path / "scores.parquet")
    np.testing.assert_allclose(np.stack(found["values"].to_pylist()), likely, rtol=1e-4)
    assert found["expected"].to_pylist() == expected.tolist()
    assert found["decided"].to_pylist() == (likely >= 0.75).tolist()
    assert ((likely > 0.5) & (likely < 0.75)).any() and found["row"].to_pylist() == [*range(len(SIZES))]


def test_pairs_are_judged_by_the_answers_alone(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    weights = small_models.llama(tmp_path / "llama")
    weights.meta["task"] = "preference"
    # the first half of a row is the chosen text, the other the rejected one; the last token of each is its answer, or two
    halves = [(size // 2, size - size // 2) for size in SIZES]
    types = np.concatenate([[0] * first + [1] * second for first, second in halves]).astype(np.uint8)
    answers = [[0] * (size - min(2, size - 1)) + [1] * min(2, size - 1) for half in halves for size in half]
    texts, tokens, ids = given_rows(
        tmp_path, weights, loss_mask=np.concatenate(answers).astype(np.uint8), token_types=types
    )
    out = new_bench(tmp_path).workdir()
    score_rows(ScoreConfig(window=64), texts, tokens, weights, out)

    model = AutoModelForCausalLM.from_pretrained(weights.path).eval()
    means: list[float] = []
    for row, (first, _) in zip(ids, halves, strict=True):
        for text in (row[:first], row[first:]):
            labels = torch.tensor([text])
            labels[0, : -min(2, len(text) - 1)] = -100
            with torch.no_grad():
                means.append(-float(model(input_ids=torch.tensor([text]), labels=labels).loss))
    found = pq.read_table(out.path / "scores.parquet")
    for name, wanted in (("chosen", means[::2]), ("rejected", means[1::2])):
        np.testing.assert_allclose(found[name].to_numpy(), wanted, rtol=1e-4)
