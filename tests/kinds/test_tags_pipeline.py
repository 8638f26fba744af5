"""Tags of words through all stages, as a user runs them, opened by transformers and judged by seqeval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.helpers.command_line import InProcessShell
from tests.helpers.products import few
from trnflow.tasks.kinds.tagged_words import units_in, written_in

pytestmark = pytest.mark.slow  # one costly fixture for each form of the rows

SMALL = ("tracking.enabled=false", "--on", "cpu")
RECIPE = """
extends: demo
name: mine
data: {{source: {source}, name: null, text: {text}, label: null, split: {{validation: 0.2, test: 0.3}}}}
format: {{task: token_classification, target: {target}, words: {words}}}
tokenize: {{train: {{vocab_size: 1000}}, max_length: 64}}
pack: {{strategy: bucket, chunk_length: 64, buckets: 2}}
train: {{max_steps: 90, global_batch: 32, learning_rate: 3.0e-3, checkpoint_every: 100, keep_best: true,
         best_metric: eval_span_f1, eval_every: 30}}
export: {{target: {export}}}
"""
FORMS: dict[str, dict[str, str]] = {
    "words": {"source": "builtin:messages", "text": "null", "target": "tags", "words": "words", "export": "onnx"},
    "spans": {"source": "spans.jsonl", "text": "text", "target": "spans", "words": "null", "export": "stablehlo"},
}
TEXTS = [
    "Good morning : Lena Fischer of Blue Lantern lands in Rio de Janeiro at nine.",
    "Is breakfast included?",
    "Oslo",
]


def spans_of(line: str) -> dict[str, Any]:
    """A row of words and tags as a text with spans."""
    row, spans, start = json.loads(line), list[dict[str, Any]](), 0
    for word, tag in zip(row["words"], row["tags"], strict=True):
        if tag.startswith("B-"):
            spans.append({"start": start, "label": tag[2:]})
        if tag != "O":
            spans[-1]["end"] = start + len(word)
        start += len(word) + 1
    return {"text": " ".join(row["words"]), "spans": spans}


@pytest.fixture(scope="module", params=few(FORMS, 1))
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[InProcessShell, str]:
    form, shell = request.param, InProcessShell(tmp_path_factory.mktemp(request.param))
    shipped = Path(__file__).parents[2] / "tasks/data/load/rows/messages.jsonl"
    rows = [json.dumps(spans_of(line)) for line in shipped.read_text().splitlines()]
    (shell.folder / "spans.jsonl").write_text("\n".join(rows))
    (shell.folder / "mine.yaml").write_text(RECIPE.format(**FORMS[form]))
    shell.json("run", "mine.yaml", "--direct", *SMALL)
    for stage in ("consolidate", "evaluate_model"):
        assert shell("get", "mine.yaml", stage, stage, *SMALL).returncode == 0
    return shell, form


def report_of(shell: InProcessShell) -> Any:
    return json.loads((shell.folder / "evaluate_model/report.json").read_text())


def test_transformers_pipeline_gives_the_same_entities(project: tuple[InProcessShell, str]) -> None:
    """But for words such as O'Brien, where the rows had words: to the pipeline they are three."""
    from transformers import pipeline

    shell, form = project
    pipe = pipeline(
        "token-classification", str(shell.folder / "consolidate"), aggregation_strategy="first", device="cpu"
    )
    rows = pq.read_table(shell.folder / "evaluate_model/predictions.parquet").to_pylist()
    texts = [text for text in (*TEXTS, *(row["text"] for row in rows)) if form != "words" or is_plain(text)]
    assert len(texts) > len(rows) // 2
    for export in ((), ("--export",)):
        some = texts if not export else texts[:3]
        ours = shell.json("predict", "mine.yaml", *SMALL, *export, *some)["results"]
        assert sum(len(result["entities"]) for result in ours) > 2
        for mine, their, text in zip(ours, pipe(some), some, strict=True):
            assert mine["entities"] == [
                {"type": one["entity_group"], "text": text[one["start"] : one["end"]], "start": one["start"],
                 "end": one["end"], "score": pytest.approx(float(one["score"]), abs=1e-5)}
                for one in their
            ]  # fmt: skip


def is_plain(text: str) -> bool:
    """Whether its words are runs of letters and digits, and single signs."""
    return [*written_in(text)] == [*units_in(text)]


def test_metrics_are_those_of_seqeval_on_the_predictions(project: tuple[InProcessShell, str]) -> None:
    from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

    shell, _ = project
    rows = pq.read_table(shell.folder / "evaluate_model/predictions.parquet").to_pylist()
    expected, predicted = ([row[name] for row in rows] for name in ("label", "predicted"))
    metrics = report_of(shell)["metrics"]
    assert metrics["span_f1"] == f1_score(expected, predicted) > 0.5
    assert metrics["span_precision"] == precision_score(expected, predicted)
    assert metrics["span_recall"] == recall_score(expected, predicted)
    assert metrics["accuracy"] == accuracy_score(expected, predicted)
    assert metrics["export_agreement"] == 1 and metrics["export_max_difference"] < 1e-4


def test_the_page_shows_intervals_types_a_picture_and_the_worst_rows(project: tuple[InProcessShell, str]) -> None:
    shell, _ = project
    report = report_of(shell)
    page = (shell.folder / "evaluate_model/report.html").read_text()
    assert page.count("data:image/png") == 1 and report["worst"]
    assert {*report["metrics"]} - {*report["intervals"]} == {"export_agreement", "export_max_difference"}
    assert [row["label"] for row in report["classes"]] == ["firm", "person", "place"]
    assert all(name in page for name in ("precision", "recall", "support", "firm"))


def test_preview_files_of_rows_and_rehearsal(project: tuple[InProcessShell, str]) -> None:
    shell, form = project
    assert "person 1-2" in shell("preview", "mine.yaml", "40", *SMALL).stdout
    column = FORMS[form]["words"] if form == "words" else "text"
    rows = [{column: ["Oslo", "is", "far"] if form == "words" else "Oslo is far"}] * 2
    (shell.folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert shell("predict", "mine.yaml", *SMALL, "--file", "rows.jsonl", "--out", "out.jsonl").returncode == 0
    first, second = map(json.loads, (shell.folder / "out.jsonl").read_text().splitlines())
    assert {**first, "row": 2} == second and first["text"] == "Oslo is far"
    assert shell("rehearse", "mine.yaml", *SMALL).returncode == 0


def test_bad_rows_are_refused_by_a_rehearsal_with_row_and_value(
    project: tuple[InProcessShell, str], tmp_path: Path
) -> None:
    shell, form = project
    rows = [{"words": ["Ann", "sits"], "tags": ["B-name", "O"]} for _ in range(60)]
    good = rows if form == "words" else [{"text": "Ann sits", "spans": [[0, 3, "name"]], "n": n} for n in range(60)]
    bad = {"words": ["Bob"], "tags": ["B-firm"]} if form == "words" else {"text": "Bob", "spans": [[0, 3, "firm"]]}
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, good)))
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, [good[0], bad])))
    asked = (f"data.source={tmp_path}", "data.split=null", "train.keep_best=false", "train.eval_every=null")
    said = shell.error("rehearse", "mine.yaml", *SMALL, *asked, code=2)
    assert "test row 2: the tag 'B-firm' in" in said and "is none of train's" in said
