"""The baselines of two texts: BM25 as bm25s computes it, and cosines as sentence-transformers does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.clients.conftest import RunClient
from tests.helpers.baselines import Fitted, packed
from tests.helpers.data_stages import new_bench
from tests.training.toys import minilm
from trnflow.tasks.evaluation.config import PredictConfig
from trnflow.tasks.evaluation.row_losses import source_rows
from trnflow.tasks.predict_before import predict_before

RANKED = """
import json, sys
import bm25s
rows = json.loads(sys.argv[1])
how = {"stopwords": None, "token_pattern": r"(?u)\\b\\w+\\b", "return_ids": False, "show_progress": False}
split = lambda texts: bm25s.tokenize(texts, **how)
passages = sorted({passage for _, passage in rows})
index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
index.index(split(passages), show_progress=False)
queries = split([query for query, _ in rows])
print(json.dumps([float(index.get_scores(words)[passages.index(row[1])]) for words, row in zip(queries, rows)]))
"""
COSINES = """
import json, sys
from sentence_transformers import SentenceTransformer, util
model, rows = SentenceTransformer(sys.argv[1], device="cpu"), json.loads(sys.argv[2])
first, second = (model.encode([row[side] for row in rows], convert_to_tensor=True) for side in (0, 1))
print(json.dumps(util.pairwise_cos_sim(first, second).tolist()))
"""


def test_passages_get_the_scores_of_bm25s(shared: Path, tmp_path: Path, run_client: RunClient) -> None:
    table = pq.read_table(shared / "data/dolly15k/train.parquet", columns=["instruction", "response"]).to_pylist()
    short = [row for row in table if len(row["response"]) < 400][:60]
    rows = [
        {"query": row["instruction"], "passage": short[(at + apart) % 60]["response"], "label": float(not apart)}
        for at, row in enumerate(short)
        for apart in (0, 1, 7)
    ]
    data = {"text": ["query", "passage"], "columns": {"label": "label"}, "label": None}
    format = {"task": "reranker", "target": "label", "text_pair": "passage"}
    fitted = Fitted(tmp_path, {"train": rows, "test": rows}, data, **format)
    pairs = [[row["text"], row["text_pair"]] for row in fitted.evaluated]
    theirs = run_client("bm25s", RANKED, json.dumps(pairs))
    assert fitted.found["values"][:, 0] == pytest.approx(theirs, rel=1e-4, abs=1e-4) and max(theirs) > 5


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "embedding"])
def test_cosines_before_training_are_sentence_transformers(
    task: str, shared: Path, tmp_path: Path, run_client: RunClient
) -> None:
    lines = (shared / "data/stsbenchmark/sts-test.csv").read_text(encoding="utf-8").split("\n")[:100]
    cells = [line.split("\t") for line in lines]
    rows = [{"first": cell[5], "second": cell[6], "score": float(cell[4]) / 5} for cell in cells]
    data = {"text": ["first", "second"], "columns": {"score": "score"}, "label": None}
    named = {"score": "score"} if task == "embedding" else {"target": "score"}
    bench, model = new_bench(tmp_path), {"source": str(minilm())}
    texts, packs = packed(bench, {"train": rows, "test": rows}, data, model, task=task, text_pair="second", **named)
    made = bench.made(predict_before, PredictConfig(), texts=texts, packed=packs, base=bench.model(model))
    found = np.load(made.path / ("decided.npy" if task == "embedding" else "values.npy"))[:, 0]
    read = pq.read_table(texts.path / "test.parquet").take(source_rows(packs, "test")).to_pylist()
    theirs = run_client(
        "sentence-transformers", COSINES, minilm(), json.dumps([[r["text"], r["text_pair"]] for r in read]), kept=True
    )
    assert found == pytest.approx(theirs, abs=1e-5)
    assert np.corrcoef(found, [row["label"][0] for row in read])[0, 1] > 0.7
