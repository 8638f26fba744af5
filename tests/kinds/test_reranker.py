"""Metrics of rankings beside scikit-learn's, what rows of a reranker may hold, and a run whose queries stay together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.helpers.command_line import InProcessShell
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.kinds.reranker import Reranker, number_of_query
from trnflow.tasks.kinds.targets import Outputs

RANKINGS = st.lists(
    st.lists(st.tuples(st.sampled_from([0.0, 0.0, 1.0]), st.integers(0, 6)), min_size=2, max_size=14),
    min_size=1,
    max_size=6,
)


def outputs(rankings: list[list[tuple[float, float]]], seed: int = 0) -> Outputs:
    """The rows of all rankings, shuffled."""
    rows = [
        (relevance, *number_of_query(f"query {n}"), value)
        for n, rows in enumerate(rankings)
        for relevance, value in rows
    ]
    table = np.array(rows, np.float32)[np.random.default_rng(seed).permutation(len(rows))]
    return Outputs(table[:, :3], table[:, 3:], table[:, 3:], np.zeros(len(rows)))


@settings(max_examples=60, deadline=None)
@given(rankings=RANKINGS)
def test_ndcg_is_that_of_scikit_learn_with_ties_and_without_relevant_passages(rankings: Any) -> None:
    from sklearn.metrics import ndcg_score

    wanted = [ndcg_score([[r for r, _ in rows]], [[v for _, v in rows]], k=10) for rows in rankings]
    assert Reranker().values(outputs(rankings))["ndcg_at_10"] == pytest.approx(np.mean(wanted), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(rankings=RANKINGS)
def test_mrr_is_the_mean_of_one_over_the_first_relevant_place(rankings: Any) -> None:
    # values that differ, so that the order is one
    apart = [[(r, value + at / 100) for at, (r, value) in enumerate(rows)] for rows in rankings]
    wanted = 0.0
    for rows in apart:
        order = [relevance for relevance, _ in sorted(rows, key=lambda row: -row[1])]
        wanted += 1 / (order.index(1.0) + 1) if 1.0 in order[:10] else 0
    assert Reranker().values(outputs(apart))["mrr_at_10"] == pytest.approx(wanted / len(apart), abs=1e-12)


def test_passages_of_equal_score_give_the_same_mrr_in_any_order() -> None:
    # a model that gives each passage one score has found nothing, wherever the relevant one stands in the file
    alike = [[(float(at == first), 0.5) for at in range(5)] for first in range(5)]
    assert {Reranker().values(outputs([rows], seed))["mrr_at_10"] for rows in alike for seed in range(3)} == {0.2}
    above = [[(0.0, 0.9), (1.0, 0.5), (1.0, 0.5), (0.0, 0.5), (0.0, 0.1)]]
    assert Reranker().values(outputs(above))["mrr_at_10"] == pytest.approx(1 / 3)


def test_targets_are_relevances_from_0_to_1() -> None:
    kind, config = FORMATS["reranker"], FormatConfig(task="reranker", text_pair="passage")
    target = kind.target_of(config, ["label"], ())
    assert [target({"label": value}, "")[0] for value in (1, 0.0, "0.5", True, False)] == [1, 0, 0.5, 1, 0]
    bad = {2: "label is 2, no relevance from 0 to 1", float("nan"): "label is nan", "yes": "'yes'", None: "missing"}
    for value, said in bad.items():
        with pytest.raises(DataError, match=f"row 7: .*{said}"):
            target({"label": value}, "row 7")
    with pytest.raises(DataError, match="all passages of train are not relevant"):
        kind.labels_of(config, lambda: [{"label": 0}, {"label": 0.2}], ())


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [({}, "set `text_pair`"), ({"text_pair": "passage", "target": ["a", "b"]}, "`target` is one column")],
)
def test_settings_of_a_reranker(given_settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FormatConfig(task="reranker", **given_settings)


@pytest.mark.slow
def test_the_shipped_rows_become_a_reranker_whose_queries_stay_together(tmp_path: Path) -> None:
    from sklearn.metrics import ndcg_score
    from transformers import pipeline

    shell, small = InProcessShell(tmp_path), ("tracking.enabled=false", "--on", "cpu")
    (tmp_path / "mine.yaml").write_text(
        "extends: [demo]\nname: mine\n"
        "data: {source: builtin:passages, name: null, text: query, label: null, split: {validation: 0.2, test: 0.3}}\n"
        "format: {task: reranker, text_pair: passage}\ntokenize: {max_length: 48}\n"
        "pack: {strategy: bucket, chunk_length: 48, buckets: 2}\n"
        "train: {max_steps: 20, eval_every: 10, keep_best: true, best_metric: ndcg_at_10}\nexport: {target: none}\n"
    )
    shell.json("run", "mine.yaml", "--direct", *small)
    for stage in ("load_data", "consolidate", "evaluate_model"):
        assert shell("get", "mine.yaml", stage, stage, *small).returncode == 0
    queries = {
        file.stem: {*pq.read_table(file)["query"].to_pylist()} for file in (tmp_path / "load_data").glob("*.parquet")
    }
    assert len(queries) == 3 and sum(map(len, queries.values())) == len(set().union(*queries.values())) == 48

    rows = pq.read_table(tmp_path / "evaluate_model/predictions.parquet").to_pylist()
    report = json.loads((tmp_path / "evaluate_model/report.json").read_text())
    by_query: dict[str, list[Any]] = {}
    for row in rows:
        by_query.setdefault(row["text"].split("\n")[0], []).append((row["label"][0], row["predicted"][0]))
    wanted = np.mean([ndcg_score([[r for r, _ in of]], [[v for _, v in of]], k=10) for of in by_query.values()])
    assert report["metrics"]["ndcg_at_10"] == pytest.approx(wanted, abs=1e-9)
    low, high = report["intervals"]["ndcg_at_10"]
    assert low < report["metrics"]["ndcg_at_10"] < high
    table = report["classes"][0]
    assert table["queries"] == len(by_query) and table["passages"] == len(rows) and table["without_relevant"] == 0

    pipe = pipeline("text-classification", str(tmp_path / "consolidate"), device="cpu")
    first, second = rows[0]["text"].split("\n")
    assert pipe({"text": first, "text_pair": second})["score"] == pytest.approx(rows[0]["predicted"][0], abs=1e-5)
    (tmp_path / "asked.jsonl").write_text(json.dumps({"query": first, "passage": second}))
    (answer,) = shell.json("predict", "mine.yaml", *small, "--file", "asked.jsonl")["results"]
    assert answer["scores"]["label"] == pytest.approx(rows[0]["predicted"][0], abs=1e-5)


def test_queries_without_a_relevant_passage_are_counted(tmp_path: Path) -> None:
    shell = InProcessShell(tmp_path)
    rows = [
        {"query": f"what is {n // 3}", "passage": f"it is {n}", "label": int(n % 3 == 0 and n < 24)} for n in range(30)
    ]
    (tmp_path / "rows").mkdir()
    for split in ("train", "test"):
        (tmp_path / f"rows/{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "mine.yaml").write_text(
        "extends: demo\nname: mine\ndata: {source: rows, name: null, text: query, label: null}\n"
        "format: {task: reranker, text_pair: passage}\n"
    )
    done = shell("run", "mine.yaml", "--direct", "tracking.enabled=false", "--until", "format_prompts")
    assert done.returncode == 0, done.stderr
    assert "train: 2 of 10 queries have no relevant passage" in done.stdout + done.stderr
