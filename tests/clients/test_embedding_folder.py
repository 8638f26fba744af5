"""sentence-transformers on the folder of an embedding: the same vectors, and metrics by its own evaluators."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.clients import figures
from tests.clients.conftest import RunClient
from tests.helpers.command_line import InProcessShell
from tests.helpers.products import few
from trnflow.tasks.kinds.embedding import Embedding
from trnflow.tasks.kinds.reranker import number_of_query
from trnflow.tasks.stage import read_json

RECIPE = """
extends: demo
name: mine
data: {source: DATA, name: null, text: query, label: null, split: {validation: 0.2, test: 0.4}}
format: {task: embedding, text_pair: passage, FORMAT}
tokenize: {max_length: 16}   # less than most passages
pack: {strategy: bucket, chunk_length: 64, buckets: 2}
train: {engine: native, devices: 1, global_batch: 16, max_steps: 20, eval_every: 10, keep_best: true, best_metric: METRIC}
export: EXPORT
"""
CASES = {
    "scores": ("score: label", "spearman", "{target: none}"),
    "pairs": ("pooling: cls, normalize: false", "mrr_at_10", "{batch: 8}"),
}
SMALL = ("tracking.enabled=false", "--on", "cpu")
SCRIPT = """
import json, sys
import numpy as np
import pyarrow.parquet as pq
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator, InformationRetrievalEvaluator
folder, texts, case = sys.argv[1:]
model, rows = SentenceTransformer(folder, device="cpu"), pq.read_table(texts).to_pylist()
queries, passages = [row["text"] for row in rows], [row["text_pair"] for row in rows]
if case == "scores":
    scores = [row["label"][0] for row in rows]
    evaluator = EmbeddingSimilarityEvaluator(queries, passages, scores, main_similarity="cosine", write_csv=False)
else:
    evaluator = InformationRetrievalEvaluator(
        dict(enumerate(queries)), {text: text for text in passages}, {n: {text} for n, text in enumerate(passages)},
        mrr_at_k=[10], accuracy_at_k=[1, 10], precision_recall_at_k=[1, 10], write_csv=False, show_progress_bar=False,
    )
metrics = {name: float(value) for name, value in evaluator(model).items()}
about = {"similarity": model.similarity_fn_name, "length": model.max_seq_length}
print(json.dumps({"vectors": model.encode(queries, convert_to_numpy=True).tolist(), **about, **metrics}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", few(["pairs", "scores"], 1))
def test_an_embedding_opens_as_a_sentence_transformer(case: str, tmp_path: Path, run_client: RunClient) -> None:
    shell, filled = InProcessShell(tmp_path), dict(zip(("FORMAT", "METRIC", "EXPORT"), CASES[case], strict=True))
    shipped = Path(__file__).parents[2] / "tasks/data/load/rows/passages.jsonl"
    rows = [json.loads(line) for line in shipped.read_text().splitlines()]
    kept = rows if case == "scores" else [row for row in rows if row["label"]]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, kept)))
    recipe = RECIPE.replace("DATA", "rows.jsonl")
    for word, value in filled.items():
        recipe = recipe.replace(word, value)
    (tmp_path / "mine.yaml").write_text(recipe)
    shell.json("run", "mine.yaml", "--direct", *SMALL)
    for stage in ("format_prompts", "consolidate", "evaluate_model"):
        assert shell("get", "mine.yaml", stage, stage, *SMALL).returncode == 0
    texts = tmp_path / "format_prompts/test.parquet"
    theirs = run_client("sentence-transformers", SCRIPT, tmp_path / "consolidate", texts, case)
    assert theirs["similarity"] == "cosine" and theirs["length"] == 16

    asked = pq.read_table(texts)["text"].to_pylist()
    (tmp_path / "asked.jsonl").write_text("\n".join(json.dumps({"query": text}) for text in asked))
    answers = shell.json("predict", "mine.yaml", *SMALL, "--file", "asked.jsonl")["results"]
    apart = float(np.abs(np.array(theirs["vectors"]) - [answer["vector"] for answer in answers]).max())
    print(f"{case}: largest difference of two numbers {apart:.2g}")
    if case == "scores":
        figures.note(
            "sentence-transformers", "the folder of an embedding", "numbers of vectors", apart, "sentence-transformers"
        )
    assert apart <= 1e-5

    report = read_json(tmp_path / "evaluate_model/report.json")
    metrics = report["metrics"]
    names = (
        {"spearman": "spearman_cosine", "pearson": "pearson_cosine"}
        if case == "scores"
        else {"recall_at_1": "cosine_recall@1", "recall_at_10": "cosine_recall@10", "mrr_at_10": "cosine_mrr@10"}
    )
    assert {name for name in metrics if not name.startswith("export")} == {*names}
    for ours, name in names.items():
        # correlations of cosines that are 1e-7 apart
        assert metrics[ours] == pytest.approx(theirs[name], abs=1e-5 if ours == "pearson" else 1e-9), name
        low, high = report["intervals"][ours]
        assert low <= metrics[ours] <= high
    page = (tmp_path / "evaluate_model/report.html").read_text()
    assert ("Nearest texts" in page) == ("retrieved" in report) == (case == "pairs")
    assert ("belong together, predicted cosine" in page) == (case == "pairs") and "<h3>Outputs</h3>" in page
    if case == "pairs":
        assert metrics["export_agreement"] == 1 and metrics["export_max_difference"] < 1e-4
        first = report["retrieved"][0]
        assert len(first["found"]) == 3 and (first["place"] == 1) == (first["found"][0]["text"] == first["positive"])


BY_VECTORS = """
import json, sys
from types import SimpleNamespace
import numpy as np, torch
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator, InformationRetrievalEvaluator
stored = np.load(sys.argv[1])
vectors, numbers, scores = stored["vectors"], stored["numbers"], stored["scores"]
rows = range(len(vectors))
table = {f"q{row}": vectors[row, 0] for row in rows} | {f"p{numbers[row]}": vectors[row, 1] for row in rows}
table |= {f"s{row}": vectors[row, 1] for row in rows}

class Model:
    similarity_fn_name, model_card_data = "cosine", SimpleNamespace(set_evaluation_metrics=lambda *given: None)
    similarity = staticmethod(lambda a, b: torch.nn.functional.normalize(a, dim=-1) @ torch.nn.functional.normalize(b, dim=-1).T)

    def encode(self, texts, **settings):
        found = np.stack([table[text] for text in texts])
        return torch.from_numpy(found) if settings.get("convert_to_tensor") else found

    encode_query = encode_document = encode

retrieval = InformationRetrievalEvaluator(
    {str(row): f"q{row}" for row in rows}, {f"p{n}": f"p{n}" for n in set(numbers.tolist())},
    {str(row): {f"p{numbers[row]}"} for row in rows},
    mrr_at_k=[10], precision_recall_at_k=[1, 10], write_csv=False, show_progress_bar=False,
)
alike = EmbeddingSimilarityEvaluator(
    [f"q{row}" for row in rows], [f"s{row}" for row in rows], scores.tolist(), main_similarity="cosine", write_csv=False
)
print(json.dumps({name: float(value) for name, value in {**retrieval(Model()), **alike(Model())}.items()}))
"""


@pytest.mark.slow
def test_metrics_are_those_of_the_evaluators_on_the_same_vectors(tmp_path: Path, run_client: RunClient) -> None:
    import torch

    random = np.random.default_rng(4)
    vectors = random.normal(size=(300, 2, 16)).astype(np.float32)
    vectors[:, 1] += vectors[:, 0]
    numbers = np.where(np.arange(300) % 7 == 6, 0, np.arange(300))  # a passage of 43 queries
    vectors[numbers == 0, 1] = vectors[0, 1]
    scores = np.round(random.normal(size=300) * 0.3 + np.arange(300) / 200)
    np.savez(tmp_path / "vectors.npz", vectors=vectors, numbers=numbers, scores=scores)
    theirs = run_client("sentence-transformers", BY_VECTORS, tmp_path / "vectors.npz", kept=True)
    texts = [[*number_of_query(f"q{row}"), *number_of_query(f"p{number}")] for row, number in enumerate(numbers)]
    logits = torch.from_numpy(vectors.reshape(300, -1))
    retrieved = Embedding().values(Embedding().outputs(logits, torch.tensor(texts)))
    alike = Embedding().values(Embedding().outputs(logits, torch.from_numpy(scores[:, None]).float()))
    for name, other in {"recall_at_1": "recall@1", "recall_at_10": "recall@10", "mrr_at_10": "mrr@10"}.items():
        assert retrieved[name] == pytest.approx(theirs[f"cosine_{other}"], abs=1e-12)
    assert alike["spearman"] == pytest.approx(theirs["spearman_cosine"], abs=1e-12)
    assert alike["pearson"] == pytest.approx(theirs["pearson_cosine"], abs=1e-6)
    assert 0.3 < retrieved["mrr_at_10"] < 0.95
