"""Losses of frozen rows beside transformers' own, also of rows that are longer than what a model reads at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.helpers import small_models
from tests.helpers.data_stages import new_bench, table
from trnflow.tasks.promotion.score_rows import ScoreConfig, score_rows


@pytest.mark.parametrize("window", [64, 8])
def test_each_token_after_the_first_is_predicted_once(window: int, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    bench, draw = new_bench(tmp_path), np.random.default_rng(5)
    weights = small_models.llama(tmp_path / "llama")
    sizes = [1, 2, 7, 8, 9, 15, 16, 30]
    rows = [{"text": " ".join(draw.choice(small_models.WORDS, size))} for size in sizes]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    texts = bench.texts(bench.rows(source=str(tmp_path), dedupe=False), task="text")
    model = {"tokenizer": str(weights.path), "config": {"model_type": "llama"}}
    tokens = bench.tokens(texts, model, max_length=64, add_eos=False)
    out = bench.workdir()
    score_rows(ScoreConfig(window=window), texts, tokens, weights, out)

    found = pq.read_table(out.path / "scores.parquet").to_pylist()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(weights.path / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(weights.path).eval()
    assert [row["tokens"] for row in found] == sizes  # each begins with bos, which nothing predicts
    for row, parts in zip(found, table(texts, "test")["parts"], strict=True):
        ids = [1, *tokenizer(parts[0]["text"], add_special_tokens=False)["input_ids"]]
        whole = 0.0
        for start in range(0, len(ids) - 1, window - 1):
            labels = torch.tensor([ids[start : start + window]])
            with torch.no_grad():
                whole += float(model(input_ids=labels, labels=labels).loss) * (labels.shape[1] - 1)
        assert row["nll"] == pytest.approx(whole, rel=1e-4)
