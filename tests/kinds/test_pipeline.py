"""Several labels a row and numbers through all stages, as a user runs them, opened by transformers and judged by
scikit-learn and scipy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.helpers.command_line import InProcessShell
from tests.helpers.products import few

pytestmark = pytest.mark.slow  # one costly fixture for each task

SMALL = ("tracking.enabled=false", "--on", "cpu")
RECIPE = """
extends: demo
name: mine
data: {{source: builtin:reviews, name: null, text: text, label: null, split: {{validation: 0.2, test: 0.3}}}}
format: {{task: {task}, target: {target}}}
pack: {{strategy: bucket, chunk_length: 32, buckets: 2}}
train: {{max_steps: 30, global_batch: 32, checkpoint_every: 50}}
export: {{target: {export}}}
"""
EXPORTS = {"multi_label": "stablehlo", "regression": "onnx"}
TASKS = {"multi_label": "topics", "regression": "score"}
TEXTS = ["The bed creaked all night.", "Breakfast was rich, with warm bread. The bill was fair."]


@pytest.fixture(scope="module", params=few(TASKS, 1))
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[InProcessShell, str]:
    task, shell = request.param, InProcessShell(tmp_path_factory.mktemp(request.param))
    text = RECIPE.format(task=task, target=TASKS[task], export=EXPORTS[task])
    (shell.folder / "mine.yaml").write_text(text)
    shell.json("run", "mine.yaml", "--direct", *SMALL)
    for stage in ("consolidate", "evaluate_model"):
        assert shell("get", "mine.yaml", stage, stage, *SMALL).returncode == 0
    return shell, task


def report_of(shell: InProcessShell) -> Any:
    return json.loads((shell.folder / "evaluate_model/report.json").read_text())


def test_transformers_pipeline_gives_the_same_numbers(project: tuple[InProcessShell, str]) -> None:
    from transformers import pipeline

    shell, task = project
    pipe = pipeline("text-classification", str(shell.folder / "consolidate"), top_k=None, device="cpu")
    theirs = [pipe([text])[0] for text in TEXTS]
    for export in ((), ("--export",)):
        ours = shell.json("predict", "mine.yaml", *SMALL, *export, *TEXTS)["results"]
        for mine, their in zip(ours, theirs, strict=True):
            their = [their] if isinstance(their, dict) else their
            numbers = mine["probabilities" if task == "multi_label" else "scores"]
            assert numbers == {one["label"]: pytest.approx(one["score"], abs=1e-5) for one in their}


def test_metrics_are_those_of_other_libraries_on_the_predictions(project: tuple[InProcessShell, str]) -> None:
    shell, task = project
    rows = pq.read_table(shell.folder / "evaluate_model/predictions.parquet").to_pylist()
    metrics = report_of(shell)["metrics"]
    if task == "multi_label":
        from sklearn.metrics import f1_score
        from sklearn.preprocessing import MultiLabelBinarizer

        coder = MultiLabelBinarizer().fit([["food", "place", "price", "room", "staff"]])
        expected, decided = (coder.transform([row[name] for row in rows]) for name in ("label", "predicted"))
        for average in ("micro", "macro"):
            assert metrics[f"f1_{average}"] == pytest.approx(
                f1_score(expected, decided, average=average, zero_division=0)
            )
        threshold = json.loads((shell.folder / "consolidate/trnflow.json").read_text())["decision"]["threshold"]
        assert f"a score of at least {threshold}, which" in (shell.folder / "consolidate/README.md").read_text()
        assert all(
            (row["probabilities"][at] >= threshold) == bool(d[at])
            for row, d in zip(rows, decided, strict=True)
            for at in range(5)
        )
    else:
        from scipy.stats import pearsonr, spearmanr

        true, value = ([row[name][0] for row in rows] for name in ("label", "predicted"))
        assert metrics["pearson"] == pytest.approx(pearsonr(true, value).statistic)
        assert metrics["spearman"] == pytest.approx(spearmanr(true, value).statistic)
    assert metrics["export_agreement"] == 1 and metrics["export_max_difference"] < 1e-4


def test_the_page_shows_intervals_a_table_a_picture_and_the_worst_rows(project: tuple[InProcessShell, str]) -> None:
    shell, task = project
    report = report_of(shell)
    page = (shell.folder / "evaluate_model/report.html").read_text()
    assert page.count("data:image/png") == 1 and report["worst"] and {*report["metrics"]} - {*report["intervals"]} <= {
        "export_agreement", "export_max_difference",
    }  # fmt: skip
    assert ("<h3>Outputs</h3>" in page) == (task == "regression")
    assert all(row["label"] in page for row in report["classes"]) and report["worst"][0]["text"][:20] in page


def test_preview_and_errors_name_rows(project: tuple[InProcessShell, str], tmp_path: Path) -> None:
    shell, task = project
    shown = shell("preview", "mine.yaml", *SMALL).stdout
    assert "label" in shown and ("score " in shown if task == "regression" else "no label" in shown or ", " in shown)
    bad = [{"text": f"a text {n}", "score": n / 2, "topics": ["a", "b"][n % 2 :]} for n in range(60)]
    bad[41] |= {"score": None, "topics": ["a"]}
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, bad)))
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": "x", "score": 1.0, "topics": ["c"]}))
    until = (f"data.source={tmp_path}", "data.split=null", "--until", "format_prompts")
    said = shell.error("run", "mine.yaml", "--direct", *SMALL, *until, code=1)
    wanted = (
        "train row 42: score is missing" if task == "regression" else "test row 1: the label 'c' in topics is none of"
    )
    assert wanted in said
    classes = shell.error("run", "mine.yaml", "--direct", *SMALL, f"data.label={TASKS[task]}", code=2)
    assert "data.label makes one class of each row" in classes
