"""Baselines on real rows beside scikit-learn's own pipelines, and on rows that are few, equal, wordless or too many."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.flows.champions.conftest import STRONG, write_tiny
from tests.helpers import small_models
from tests.helpers.baselines import Fitted
from tests.helpers.command_line import InProcessShell
from tests.helpers.data_stages import new_bench
from tests.helpers.kept_inputs import run_whole
from tests.helpers.waiting import wait_for
from trnflow.flows.display.report import figures
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.evaluate_model import EvaluateConfig, evaluate_model
from trnflow.tasks.evaluation.baselines import examples, text_features
from trnflow.tasks.evaluation.config import PredictConfig
from trnflow.tasks.kinds.kind import IGNORED
from trnflow.tasks.kinds.targets import Outputs
from trnflow.tasks.predict_before import predict_before


def features() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", sublinear_tf=True)
    return make_union(words, TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True))


def outputs(rows: Iterable[Meta], values: Any) -> Outputs:
    expected = np.array([row["label"] for row in rows], np.float32)
    return Outputs(expected, values.astype(np.float32), values.astype(np.float32), np.ones(len(expected)))


def emotion(shared: Path, split: str, count: int) -> list[dict[str, Any]]:
    table = pq.read_table(shared / f"data/emotion/{split}.parquet", columns=["text", "label_name"])
    return list(table.slice(0, count).to_pylist())


def test_classes_are_those_of_scikit_learns_pipeline(shared: Path, tmp_path: Path) -> None:
    from sklearn.metrics import accuracy_score
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    splits = {split: emotion(shared, split, 500) for split in ("train", "test")}
    fitted = Fitted(tmp_path, splits, {"text": "text", "label": "label_name"}, task="classification")
    theirs = make_pipeline(features(), LinearSVC())
    theirs.fit([row["text"] for row in fitted.train], [row["label"] for row in fitted.train])
    predicted = theirs.predict([row["text"] for row in fitted.evaluated])
    # the order of rows decides on few that lie on the border
    assert (fitted.found["predicted"] == predicted).mean() > 0.99
    expected = [row["label"] for row in fitted.evaluated]
    found = accuracy_score(expected, fitted.found["predicted"])
    assert found == pytest.approx(accuracy_score(expected, predicted), abs=0.005) and found > 0.5
    assert fitted.made.meta == {
        "method": "TF-IDF of words and characters, LinearSVC", "rows": 500, "orders": False
    }  # fmt: skip


def goemotions(shared: Path, split: str, count: int) -> list[dict[str, Any]]:
    lines = (shared / f"data/goemotions/{split}.tsv").read_text(encoding="utf-8").split("\n")[:count]
    return [{"text": text, "labels": numbers.split(",")} for text, numbers, _ in (line.split("\t") for line in lines)]


def test_labels_are_those_of_scikit_learn_at_the_threshold_of_validation(shared: Path, tmp_path: Path) -> None:
    from sklearn.metrics import f1_score
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    counts = {"train": ("train", 400), "validation": ("dev", 100), "test": ("test", 200)}
    splits = {split: goemotions(shared, *which) for split, which in counts.items()}
    names = [str(number) for number in range(28)]
    format = {"task": "multi_label", "target": "labels", "labels": names}
    fitted = Fitted(tmp_path, splits, {"text": "text", "columns": {"labels": "labels"}, "label": None}, **format)
    theirs = make_pipeline(features(), OneVsRestClassifier(LinearSVC()))
    theirs.fit([row["text"] for row in fitted.train], np.array([row["label"] for row in fitted.train]))
    predicted = theirs.predict([row["text"] for row in fitted.evaluated])
    assert ((fitted.found["values"] > 0.5) == predicted).mean() > 0.999
    metrics = fitted.measured(outputs(fitted.evaluated, np.zeros((200, 28))))
    expected = np.array([row["label"] for row in fitted.evaluated])
    at_half = f1_score(expected, predicted, average="micro", zero_division=0)
    assert metrics["f1_micro_at_half"] == pytest.approx(at_half, abs=0.01)
    assert metrics["f1_micro"] == pytest.approx(f1_score(expected, fitted.found["decided"], average="micro"))
    assert metrics["f1_micro"] > at_half and "loss" not in metrics


def sentences(shared: Path, split: str, count: int) -> list[dict[str, Any]]:
    lines = (shared / f"data/stsbenchmark/sts-{split}.csv").read_text(encoding="utf-8").split("\n")[:count]
    cells = [line.split("\t") for line in lines]
    return [{"first": cell[5], "second": cell[6], "score": float(cell[4])} for cell in cells]


def test_numbers_are_those_of_scikit_learns_ridge(shared: Path, tmp_path: Path) -> None:
    from scipy.stats import spearmanr
    from sklearn.linear_model import Ridge
    from sklearn.metrics import mean_absolute_error
    from sklearn.pipeline import make_pipeline

    splits = {split: sentences(shared, split, 300) for split in ("train", "test")}
    data = {"text": "first", "columns": {"score": "score"}, "label": None}
    fitted = Fitted(tmp_path, splits, data, task="regression", target="score")
    theirs = make_pipeline(features(), Ridge())
    theirs.fit([row["text"] for row in fitted.train], [row["label"][0] for row in fitted.train])
    predicted = theirs.predict([row["text"] for row in fitted.evaluated])
    assert fitted.found["values"][:, 0] == pytest.approx(predicted, abs=1e-3)
    metrics = fitted.measured(outputs(fitted.evaluated, np.zeros((300, 1))))
    expected = [row["label"][0] for row in fitted.evaluated]
    assert metrics["mae"] == pytest.approx(mean_absolute_error(expected, predicted), abs=1e-3)
    assert metrics["spearman"] == pytest.approx(spearmanr(expected, predicted).statistic, abs=1e-3)
    assert {*metrics} == {"mae", "rmse", "pearson", "spearman"}


def test_numbers_of_two_texts_follow_the_cosine_of_tf_idf(shared: Path, tmp_path: Path) -> None:
    from scipy.stats import spearmanr
    from sklearn.linear_model import LinearRegression
    from sklearn.metrics.pairwise import paired_cosine_distances

    splits = {split: sentences(shared, split, 300) for split in ("train", "test")}
    data = {"text": ["first", "second"], "columns": {"score": "score"}, "label": None}
    fitted = Fitted(tmp_path, splits, data, task="regression", target="score", text_pair="second")
    sides = [
        [[row[name] for name in ("text", "text_pair")] for row in rows] for rows in (fitted.train, fitted.evaluated)
    ]
    theirs = features().fit(sorted({text for row in sides[0] for text in row}))
    known, asked = (
        1 - paired_cosine_distances(*(theirs.transform(column) for column in zip(*side, strict=True))) for side in sides
    )
    line = LinearRegression().fit(known[:, None], [row["label"][0] for row in fitted.train])
    assert fitted.found["values"][:, 0] == pytest.approx(line.predict(asked[:, None]), abs=1e-4)
    expected = [row["label"][0] for row in fitted.evaluated]
    assert spearmanr(expected, fitted.found["values"][:, 0]).statistic > 0.5


def tagged(shared: Path, split: str, count: int) -> list[dict[str, Any]]:
    blocks = (shared / f"data/wnut17/{split}.conll").read_text(encoding="utf-8").replace("\n\t\n", "\n\n").split("\n\n")
    sentences = [[line.split("\t") for line in block.split("\n") if line.strip()] for block in blocks[:count]]
    return [{"words": [word[0] for word in words], "tags": [word[1] for word in words]} for words in sentences if words]


def test_a_word_gets_its_most_frequent_tag(shared: Path, tmp_path: Path) -> None:
    import pandas as pd

    splits = {split: tagged(shared, split, 400) for split in ("train", "test")}
    format = {"task": "token_classification", "target": "tags", "words": "words"}
    fitted = Fitted(
        tmp_path, splits, {"text": None, "columns": {"words": "words", "tags": "tags"}, "label": None}, **format
    )
    seen = pd.DataFrame([pair for row in splits["train"] for pair in zip(row["words"], row["tags"], strict=True)])
    usual = seen.groupby(0)[1].agg(lambda tags: tags.value_counts().index[0])
    labels = fitted.packed.meta["labels"]
    read = iter(labels[tag] for tag in fitted.found["decided"])
    ties = seen.groupby(0)[1].agg(lambda tags: len(tags.mode()) > 1)
    buckets = [open_chunks(fitted.packed, "test", length)["labels"] for length in fitted.packed.meta["lengths"]]
    counts = [int((tags != IGNORED).sum()) for bucket in buckets for tags in bucket]
    assert sum(counts) == len(fitted.found["decided"])
    compared = 0
    for row, count in zip(fitted.evaluated, counts, strict=True):
        for word in row["label"][:count]:  # a model reads no further
            text, tag = row["text"][word["start"] : word["end"]], next(read)
            if text in usual and not ties[text]:
                assert tag == usual[text]
                compared += 1
    assert compared > 1000


def evaluated(folder: Path, train: Any, test: Any, **config: Any) -> tuple[dict[str, float], Meta, Path, list[Meta]]:
    """Evaluate a classifier of random weights. train, test: (text, number of the class) of each row.

    Returns the metrics, report.json, the folder and what the stages said."""
    import pyarrow as pa

    (folder / "texts").mkdir()
    splits = {name: rows for name, rows in (("train", train), ("test", test)) if rows}
    for name, rows in splits.items():
        table = pa.table({"text": [text for text, _ in rows], "label": [number for _, number in rows]})
        pq.write_table(table, folder / f"texts/{name}.parquet")
    chunks = {
        name: {16: [[([5, 6 + at % 9], number)] for at, (_, number) in enumerate(rows)]}
        for name, rows in splits.items()
    }
    bench = new_bench(folder)
    inputs = {
        "texts": Input(folder / "texts", "texts", {}, "sha256:texts"),
        "packed": small_models.packed_rows(folder / "packed", "classification", chunks),
        "weights": small_models.bert(folder / "bert"),
    }  # fmt: skip
    out = bench.workdir()
    meta = run_whole(evaluate_model, EvaluateConfig(**config), inputs, out)
    return meta["metrics"], json.loads((out.path / "report.json").read_text()), out.path, bench.said


WORDS = ("glad", "angry", "sad")
FEW: dict[str, tuple[Any, Any, float]] = {
    "one class in train": ([("glad", 0)] * 5, [("glad", 0), ("angry", 1), ("sad", 0)], 2 / 3),
    "a class with one row": ([("so glad", 0), ("all angry", 1)] * 4 + [("too sad", 2)], [("sad", 2), ("glad", 0)], 1),
    "20 rows": ([(f"{WORDS[n % 3]} {n}", n % 3) for n in range(16)], [(WORDS[n % 3], n % 3) for n in range(4)], 1),
    "a class that train has not": ([("glad", 0), ("angry", 1)] * 4, [("sad", 2), ("angry", 1)], 0.5),
    "rows without a word": ([("?", 0), ("!", 1)] * 4, [("!", 1), ("?", 0), ("", 1)], 2 / 3),
    "each row a class": ([("glad", 0), ("angry", 1), ("sad", 2)], [("sad", 2)], 1),
}


@pytest.mark.parametrize("case", FEW)
def test_few_rows_have_a_baseline_too(case: str, tmp_path: Path) -> None:
    train, test, accuracy = FEW[case]
    metrics, report, out, _ = evaluated(tmp_path, train, test)
    assert metrics["accuracy_baseline"] == pytest.approx(accuracy, abs=0.34 if case == "rows without a word" else 1e-9)
    (entry,) = report["baselines"]
    assert entry["rows"] == len(train) and entry["metrics"]["accuracy"] == metrics["accuracy_baseline"]
    rows = pq.read_table(out / "baseline.parquet").to_pylist()
    named = [small_models.LABELS[number] for _, number in test]
    assert np.mean([row["predicted"] == named[row["row"] - 1] for row in rows]) == metrics["accuracy_baseline"]


PLENTY = [(f"{WORDS[n % 3]} {n} as one of many", n % 3) for n in range(30)]


@pytest.mark.parametrize(
    ("limit", "train", "why"),
    [
        ((text_features, "WORK"), PLENTY, "30 rows of train are too many for it"),
        ((examples, "BYTES"), PLENTY, "the rows have 0 MB, more than 0"),
        (None, [("", 0), (" ", 1)], "the texts of train hold no word"),
        (None, [], "there are no rows of train"),
    ],
)
def test_a_baseline_is_left_out_in_one_line(
    limit: Any, train: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit:
        module, name = limit
        monkeypatch.setattr(module, name, 1)
    metrics, report, out, said = evaluated(tmp_path, train, PLENTY)
    assert report["baselines"] == [{"name": "baseline", "left_out": why}]
    assert [event["info"] for event in said if "info" in event] == [f"no baseline to compare with: {why}"]
    assert "accuracy" in metrics and not any(name.endswith("_baseline") for name in metrics)
    assert f"Without simple baseline: {why}." in (out / "report.html").read_text()
    assert not (out / "baseline.parquet").exists()


def test_null_makes_none(tmp_path: Path) -> None:
    metrics, report, out, _ = evaluated(tmp_path, PLENTY, PLENTY, baseline=None)
    assert "baselines" not in report and not any(name.endswith("_baseline") for name in metrics)
    assert "baseline" not in (out / "report.html").read_text()


def test_the_page_has_both_figures(tmp_path: Path) -> None:
    metrics, _, out, _ = evaluated(tmp_path, PLENTY, PLENTY)
    page = (out / "report.html").read_text()
    assert metrics["accuracy_baseline"] == 1
    assert "<th>simple baseline" in page.replace('class="number"', "").replace("<th >", "<th>")
    assert "Simple baseline: TF-IDF of words and characters, LinearSVC, learnt from 30 rows of train." in page


def test_a_table_has_what_is_compared_behind_the_metric() -> None:
    values = {"accuracy_baseline": 0.8, "loss": 0.25, "accuracy": 0.91234, "loss_before": 3.0, "auc_baseline": 0.5}
    assert figures(values) == "accuracy 0.9123 (baseline 0.8)  loss 0.25 (before 3)  auc_baseline 0.5"


def test_constant_scores_have_no_correlation(tmp_path: Path) -> None:
    splits = {
        "train": [{"text": f"row {n}", "score": float(n < 1)} for n in range(20)],
        "test": [{"text": f"another {n}", "score": 3.0} for n in range(20)],
    }
    data = {"text": "text", "columns": {"score": "score"}, "label": None}
    fitted = Fitted(tmp_path, splits, data, task="regression", target="score")
    metrics = fitted.measured(outputs(fitted.evaluated, np.zeros((20, 1))))
    assert metrics["pearson"] == metrics["spearman"] == 0 and metrics["mae"] > 2


def test_equal_rows_have_equal_baselines_in_any_order(tmp_path: Path) -> None:
    """And in any process: the bytes are the artifact."""
    rows = [{"text": f"{WORDS[n % 3]} {n % 11} {n % 7}", "label": WORDS[n * n % 3]} for n in range(60)]
    found = []
    for name, train in (("once", rows), ("again", rows[::-1])):
        (tmp_path / name).mkdir()
        splits = {"train": train, "test": rows[:20]}
        fitted = Fitted(tmp_path / name, splits, {"text": "text", "label": "label"}, task="classification")
        answers = zip([row["text"] for row in fitted.evaluated], fitted.found["predicted"].tolist(), strict=True)
        found.append(sorted(answers))
    assert found[0] == found[1]


def the_verdict_and_the_curves(shell: InProcessShell, got: Path, strong: str, weak: str) -> None:
    """Of the run `strong`, copied to `got`, and of one of a single update, which printed `weak`."""
    import trnflow as tr
    from trnflow.tasks.store import Store

    report, page = json.loads((got / "report.json").read_text()), (got / "report.html").read_text()
    assert report["notes"][0].startswith(f"accuracy {report['metrics']['accuracy']:.3g}")
    assert (
        page.index(report["notes"][0][:20])
        < page.index("<h2>Metrics")
        < page.index("<h3>eval_loss")
        < page.index("<h2>Pred")
    )
    assert Path(shell.json("report", strong)["path"]).read_text().count("<h3>learning_rate") == 1
    lines = weak.splitlines()
    verdict = [line[16:] for line in lines[lines.index(next(row for row in lines if row.startswith("verdict"))) :]]
    assert verdict[0].startswith("accuracy ") and "the model is worse than the simple baseline" in "".join(verdict)
    assert lines[-len(verdict) - 1].startswith("evaluate_model ")
    store = Store(str(shell.folder / ".trnflow/store"), shell.folder / ".trnflow")
    curves = tr.Run(store, strong).curves
    assert curves.to_dict("records")[-1].items() >= report["curves"][-1].items() and len(curves) == len(
        report["curves"]
    )
    assert curves["eval_loss"].isna().any() and curves["loss"].isna().tolist() == [True] + [False] * (len(curves) - 1)


@pytest.mark.slow
def test_a_run_shows_both_figures_and_fits_the_baseline_once(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    shell = InProcessShell(write_tiny(tmp_path))
    settings = ("--direct", "export.target=none", "tracking.enabled=true")

    def metrics(*more: str) -> dict[str, float]:
        found: dict[str, float] = shell.json("run", "tiny.yaml", *settings, *more)["stages"][-1]["metrics"]
        return found

    def attempts() -> int:
        return len([*(tmp_path / ".trnflow/store/attempts").glob("*/*evaluate_model.shard*")])

    weak = metrics()
    assert attempts() == 2  # predictions, and the baseline
    strong = metrics(STRONG)
    assert attempts() == 3 and strong["accuracy"] > weak["accuracy"]
    assert strong["accuracy_baseline"] == weak["accuracy_baseline"] > 0.8
    shown = f"f1_weighted {strong['f1_weighted']:.4g} (baseline {strong['f1_weighted_baseline']:.4g})"
    assert shown in shell("run", "tiny.yaml", *settings, STRONG).stdout and shown in shell("runs").stdout
    assert shell("get", "tiny.yaml", "evaluate_model", "got", *settings[1:], STRONG).returncode == 0
    run = shell.json("run", "tiny.yaml", *settings, STRONG)["run"]
    the_verdict_and_the_curves(shell, tmp_path / "got", run, shell("run", "tiny.yaml", *settings).stdout)
    model, simple = (pq.read_table(tmp_path / f"got/{name}.parquet") for name in ("predictions", "baseline"))
    assert model["row"] == simple["row"]
    right = [
        row == other for row, other in zip(model["label"].to_pylist(), simple["predicted"].to_pylist(), strict=True)
    ]
    assert np.mean(right) == pytest.approx(strong["accuracy_baseline"])
    assert metrics(STRONG, "evaluate.baseline=null") == {
        name: value for name, value in strong.items() if not name.endswith("_baseline")
    }
    assert attempts() == 3
    client = MlflowClient(f"sqlite:///{tmp_path / '.trnflow/mlflow.db'}")

    def logged() -> set[float]:
        (experiment,) = (one for one in client.search_experiments() if one.name == "trnflow")
        runs = client.search_runs([experiment.experiment_id])
        return {
            run.data.metrics[name] for run in runs for name in run.data.metrics if name.endswith("accuracy_baseline")
        }

    wait_for(logged, 120)
    assert logged() == {strong["accuracy_baseline"]}


def test_the_loss_before_training_is_what_transformers_gives(shared: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    table = pq.read_table(shared / "data/dolly15k/train.parquet", columns=["response"])["response"].to_pylist()
    short = [text for text in table if 50 < len(text) < 300 and "\n" not in text][:24]
    (tmp_path / "rows").mkdir()
    for split, texts in (("train", short[:16]), ("test", short[16:])):
        (tmp_path / f"rows/{split}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    bench, model = new_bench(tmp_path), {"source": str(shared / "assets/stories260K-hf")}
    rows = bench.rows(source=str(tmp_path / "rows"), text="text")
    texts = bench.texts(rows, model, task="text", text="text")
    packed = bench.packed(bench.tokens(texts, model, max_length=256), strategy="bfd", chunk_length=256)
    made = bench.made(predict_before, PredictConfig(), texts=texts, packed=packed, base=bench.model(model))
    theirs, tokenizer = (kind.from_pretrained(model["source"]) for kind in (AutoModelForCausalLM, AutoTokenizer))
    expected = []
    for text in short[16:]:
        ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
        with torch.inference_mode():
            expected.append(float(theirs(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1))
    assert np.load(made.path / "nll.npy") == pytest.approx(expected, rel=1e-4)
    assert made.meta["total"] == pytest.approx(sum(expected), rel=1e-4)
    assert made.meta["method"] == "the model before training"
