"""sentence-transformers' CrossEncoder on a reranker's folder: the same scores, and metrics by its own evaluator."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.clients import figures
from tests.clients.conftest import RunClient
from tests.helpers.checkpoints import NOTHING, checkpoint
from tests.helpers.command_line import InProcessShell
from tests.helpers.small_models import tokenizer, workdir
from tests.training.toys import BERT, packed_targets
from trnflow.tasks.consolidate import ConsolidateConfig, consolidate
from trnflow.tasks.stage import read_json, write_json

RECIPE = """
extends: demo
name: mine
data: {source: builtin:passages, name: null, text: query, label: null, split: {validation: 0.2, test: 0.3}}
format: {task: reranker, text_pair: passage}
tokenize: {max_length: 20}   # less than most rows: the folder must say where they were cut
pack: {strategy: bucket, chunk_length: 48, buckets: 2}
train: {max_steps: 20}
export: {target: none}
"""
SMALL = ("tracking.enabled=false", "--on", "cpu")
SCRIPT = """
import json, sys
import pyarrow.parquet as pq
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator
folder, predictions = sys.argv[1:]
model, queries, pairs = CrossEncoder(folder, device="cpu"), {}, []
for row in pq.read_table(predictions).to_pylist():
    query, passage = row["text"].split("\\n")
    pairs.append((query, passage))
    kind = "positive" if row["label"][0] > 0.5 else "negative"
    queries.setdefault(query, {"query": query, "positive": [], "negative": []})[kind].append(passage)
evaluator = CrossEncoderRerankingEvaluator([*queries.values()], at_k=10, write_csv=False, show_progress_bar=False)
scores = [float(score) for score in model.predict(pairs)]
print(json.dumps({"scores": scores, **evaluator(model)}))
"""

NUMBERS = """
import json, sys, torch, transformers
from sentence_transformers import CrossEncoder
pairs = [("cat dog", "a dog"), ("cat", "a cat and a dog " * 50), ("dog", "cat cat")]
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
model = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1]).eval()
with torch.no_grad():
    wanted = [model(**tokenizer(*pair, truncation=True, return_tensors="pt")).logits.item() for pair in pairs]
found = CrossEncoder(sys.argv[1], device="cpu").predict(pairs)
print(json.dumps([wanted, [float(number) for number in found]]))
"""


@pytest.mark.slow
def test_a_cross_encoder_shows_the_numbers_of_a_regression(tmp_path: Path, run_client: RunClient) -> None:
    shards, _ = checkpoint(tmp_path, packed_targets(tmp_path / "packed", "regression", ["price"]), **BERT)
    tokenizer(shards.path / "tokenizer")
    write_json(shards.path / "tokenizer" / "tokenizer_config.json", {"pad_token": "<pad>"})
    consolidate(ConsolidateConfig(), shards, NOTHING, out=workdir(tmp_path / "made"))
    wanted, found = run_client("sentence-transformers", NUMBERS, tmp_path / "made")
    assert found == pytest.approx(wanted, abs=1e-5)


@pytest.mark.slow
def test_a_reranker_opens_as_a_cross_encoder_with_equal_scores_and_metrics(
    tmp_path: Path, run_client: RunClient
) -> None:
    shell = InProcessShell(tmp_path)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    shell.json("run", "mine.yaml", "--direct", *SMALL)
    for stage in ("consolidate", "evaluate_model"):
        assert shell("get", "mine.yaml", stage, stage, *SMALL).returncode == 0
    predictions = tmp_path / "evaluate_model/predictions.parquet"
    theirs = run_client("sentence-transformers", SCRIPT, tmp_path / "consolidate", predictions)
    ours = pq.read_table(predictions)["predicted"].to_pylist()
    apart = max(abs(score - mine[0]) for score, mine in zip(theirs["scores"], ours, strict=True))
    metrics = read_json(tmp_path / "evaluate_model/report.json")["metrics"]
    client = "sentence-transformers"
    figures.note(client, "the folder of a reranker, by CrossEncoder", "scores", apart, client)
    assert apart <= 1e-6
    data = read_json(tmp_path / "evaluate_model/report.json")["data"]["test"]
    assert data["truncated"] > data["rows"] / 2
    for name in ("ndcg", "mrr"):
        assert metrics[f"{name}_at_10"] == pytest.approx(theirs[f"{name}@10"], abs=1e-12)
