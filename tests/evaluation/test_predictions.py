"""predictions.parquet, read by pyarrow: every row is the text that it says, and the report's metrics follow from it by
scikit-learn and scipy."""

from __future__ import annotations

import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers import small_models
from tests.helpers.data_stages import Bench, new_bench, table
from tests.helpers.kept_inputs import run_whole
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.errors import DataError
from trnflow.tasks.evaluate_model import EvaluateConfig, evaluate_model
from trnflow.tasks.evaluation import forward
from trnflow.tasks.evaluation.forward import token_losses
from trnflow.tasks.evaluation.predictions import write_answers
from trnflow.tasks.training.batches.sampler import Split

WORDS = small_models.WORDS
NOT_EXPORTED = {"target": "neuron"}


def sentence(draw: np.random.Generator, longest: int) -> str:
    return " ".join(draw.choice(WORDS, int(draw.integers(1, longest))))


def evaluate(bench: Bench, texts: Input, packed: Input, weights: Input, **config: Any) -> tuple[Path, Meta]:
    exported = Input(bench.root, "exported", NOT_EXPORTED, "sha256:none")
    out = bench.workdir()
    inputs = {"texts": texts, "packed": packed, "weights": weights, "exported": exported}
    shown = run_whole(evaluate_model, EvaluateConfig(**config), inputs, out)["metrics"]
    return out.path, {**json.loads((out.path / "report.json").read_text()), "shown": shown}


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, Input, Input, Path, Meta]:
    """Rows in two buckets. A few are longer than `max_length`, others than any chunk: both are dropped."""
    bench = new_bench(tmp_path_factory.mktemp("classified"))
    weights = small_models.bert(bench.root / "bert")
    draw = np.random.default_rng(3)
    for split, count in (("train", 30), ("test", 60)):
        rows = [{"text": sentence(draw, 30), "label": small_models.LABELS[number % 3]} for number in range(count)]
        (bench.root / "rows").mkdir(exist_ok=True)
        (bench.root / "rows" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rows = bench.rows(source=str(bench.root / "rows"), text="text", label="label")
    texts = bench.texts(rows, task="classification")
    tokens = bench.tokens(
        texts, {"tokenizer": str(weights.path), "config": {"model_type": "bert"}}, overlong="drop", max_length=24
    )
    packed = bench.packed(tokens, strategy="bucket", lengths=[16, 20], chunk_length=20, overlong="drop")
    return bench, texts, weights, *evaluate(bench, texts, packed, weights)


def test_a_row_is_the_text_that_it_says(classified: tuple[Bench, Input, Input, Path, Meta]) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

    _, texts, weights, out, report = classified
    found, given = pq.read_table(out / "predictions.parquet"), table(texts, "test")
    rows = found.to_pylist(maps_as_pydicts="strict")
    assert [row["row"] for row in rows] == sorted({row["row"] for row in rows}) and len(rows) < 60 == len(given["text"])
    assert report["rows"] == len(rows)
    model = AutoModelForSequenceClassification.from_pretrained(weights.path).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(weights.path / "tokenizer.json"))
    labels = small_models.LABELS
    for row in rows:
        text = given["text"][row["row"] - 1]
        assert row["text"] == text and row["digest"] == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        assert row["label"] == labels[given["label"][row["row"] - 1]]
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            probabilities = model(input_ids=ids).logits[0].softmax(-1)
        assert row["probabilities"] == pytest.approx(dict(zip(labels, probabilities.tolist(), strict=True)), abs=1e-5)
        assert row["predicted"] == labels[int(probabilities.argmax())]
        assert row["loss"] == pytest.approx(-math.log(probabilities[labels.index(row["label"])]), abs=1e-5)


def test_the_metrics_of_the_report_alone_are_in_no_table(classified: tuple[Bench, Input, Input, Path, Meta]) -> None:
    *_, report = classified
    assert report["metrics"].keys() - report["shown"].keys() == {"mcc", "log_loss", "auc"}


def test_rows_that_are_dropped_for_their_length_are_reported(
    classified: tuple[Bench, Input, Input, Path, Meta],
) -> None:
    from transformers import PreTrainedTokenizerFast

    _, texts, weights, out, report = classified
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(weights.path / "tokenizer.json"))
    sizes = [len(tokenizer(text)["input_ids"]) for text in table(texts, "test")["text"]]
    lost = [size for size in sizes if size > 20]
    assert any(size > 24 for size in lost) and any(size <= 24 for size in lost) and report["rows"] == 60 - len(lost)
    assert report["data"]["test"] == {"rows": 60, "truncated": 0, "too_long": len(lost), "unsupervised": 0}
    note = f"{len(lost)} of 60 ({100 * len(lost) / 60:.3g} %) rows of test were left out for their length: they are not evaluated"
    assert any(line.startswith(note) for line in report["notes"])
    page = (out / "report.html").read_text()
    assert note in page and "left out for their length</th>" in page


def test_metrics_follow_from_the_predictions(classified: tuple[Bench, Input, Input, Path, Meta]) -> None:
    from scipy.stats import bootstrap
    from sklearn import metrics

    *_, out, report = classified
    columns = pq.read_table(out / "predictions.parquet").to_pydict(maps_as_pydicts="strict")
    labels = small_models.LABELS
    true, predicted = ([labels.index(name) for name in columns[side]] for side in ("label", "predicted"))
    probabilities = np.array([[row[label] for label in labels] for row in columns["probabilities"]])
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    found = report["metrics"]
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(true, predicted))
    assert found["f1_macro"] == pytest.approx(metrics.f1_score(true, predicted, average="macro"))
    assert found["f1_weighted"] == pytest.approx(metrics.f1_score(true, predicted, average="weighted"))
    assert found["mcc"] == pytest.approx(metrics.matthews_corrcoef(true, predicted))
    assert found["log_loss"] == pytest.approx(metrics.log_loss(true, probabilities))
    assert found["loss"] == pytest.approx(np.mean(columns["loss"]))
    assert found["loss"] == pytest.approx(found["log_loss"], rel=1e-5)
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(true, probabilities, multi_class="ovr", average="macro"))
    assert report["confusion"] == metrics.confusion_matrix(true, predicted).tolist()
    scores = metrics.precision_recall_fscore_support(true, predicted)
    for name, values in zip(("precision", "recall", "f1", "support"), scores, strict=True):
        assert [entry[name] for entry in report["classes"]] == pytest.approx(values)
    sure, right = probabilities.max(axis=1), np.array(true) == np.array(predicted)
    inside = np.digitize(sure, np.linspace(0, 1, 16))
    gaps = [abs(right[inside == b].mean() - sure[inside == b].mean()) * (inside == b).mean() for b in set(inside)]
    assert found["ece"] == pytest.approx(sum(gaps), abs=1e-6)

    def f1(one: Any, other: Any) -> float:
        return float(metrics.f1_score(one, other, average="weighted", zero_division=0))

    drawn = bootstrap(
        (true, predicted), f1, paired=True, vectorized=False, n_resamples=1000, method="percentile", rng=1
    )
    low, high = report["intervals"]["f1_weighted"]
    assert low < found["f1_weighted"] < high
    assert (low, high) == pytest.approx(tuple(drawn.confidence_interval), abs=0.03)


def test_an_error_counts_rows_as_the_predictions_do(classified: tuple[Bench, Input, Input, Path, Meta]) -> None:
    """Also where tokenising has dropped rows before the one that is too long for a chunk."""
    bench, texts, weights, *_ = classified
    model = {"tokenizer": str(weights.path), "config": {"model_type": "bert"}}
    tokens = bench.tokens(texts, model, overlong="drop", max_length=16)
    with pytest.raises(DataError, match=r"split \w+ row \d+: 1\d tokens don't fit a chunk of 12") as refused:
        bench.packed(tokens, strategy="pad", chunk_length=12)
    named = re.search(r"split (\w+) row (\d+): (\d+) tokens", str(refused.value))
    assert named is not None
    split, row, size = named.groups()
    given = [2 + len(text.split()) for text in table(texts, split)["text"]]
    assert any(before > 16 for before in given[: int(row) - 1]) and given[int(row) - 1] == int(size)


def test_the_worst_errors_are_shown_with_their_texts(classified: tuple[Bench, Input, Input, Path, Meta]) -> None:
    _, texts, _, out, report = classified
    rows = pq.read_table(out / "predictions.parquet").to_pylist()
    wrong = sorted((row for row in rows if row["label"] != row["predicted"]), key=lambda row: -row["loss"])
    assert [entry["row"] for entry in report["worst"]] == [row["row"] for row in wrong[:10]]
    for entry in report["worst"]:
        assert entry["text"] == table(texts, "test")["text"][entry["row"] - 1]
        assert f"Row {entry['row']}: " in (out / "report.html").read_text()


@pytest.mark.parametrize(("strategy", "overlong"), [("bfd", "truncate"), ("bfd", "split"), ("concat", "truncate")])
def test_losses_of_a_language_model_are_those_of_its_rows(tmp_path: Path, strategy: str, overlong: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    bench, draw = new_bench(tmp_path), np.random.default_rng(5)
    weights = small_models.llama(tmp_path / "llama")
    rows = [{"instruction": sentence(draw, 8), "response": sentence(draw, 30)} for _ in range(40)]
    rows[7]["response"] = ""  # dropped before it is a text
    rows[9]["instruction"] = rows[11]["instruction"] = "cat " * 30  # leaves no room for an answer
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows[:3])))
    given = bench.rows(source=str(tmp_path))
    texts = bench.texts(given, task="instruction", prompt_template="what {{ instruction }} answer ")
    model = {"tokenizer": str(weights.path), "config": {"model_type": "llama"}}
    tokens = bench.tokens(texts, model, max_length=24, overlong=overlong, add_eos=False)
    packed = bench.packed(tokens, strategy=strategy, chunk_length=64)
    out, report = evaluate(bench, texts, packed, weights, generation={"prompts": 0})

    found = pq.read_table(out / "predictions.parquet").to_pylist()
    parts = table(texts, "test")["parts"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(weights.path / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(weights.path).eval()
    whole = 0
    for row in found:
        prompt, answer = (part["text"] for part in parts[row["row"] - 1])
        assert row["text"] == prompt + answer
        assert row["digest"] == f"sha256:{hashlib.sha256((prompt + answer).encode()).hexdigest()}"
        ids = [1, *tokenizer(prompt + answer, add_special_tokens=False)["input_ids"]]
        first = 1 + len(prompt.split())
        assert row["cut"] == (len(ids) > 24) or strategy == "concat"
        if row["cut"]:
            continue
        whole += 1
        labels = torch.tensor([[-100] * first + ids[first:]])
        with torch.no_grad():
            loss = float(model(input_ids=torch.tensor([ids]), labels=labels).loss)
        assert row["tokens"] == len(ids) - first
        assert row["nll"] == pytest.approx(loss * row["tokens"], rel=1e-4)
        assert row["bytes"] == len(answer.encode())
    assert whole > 10 and len(found) <= 39
    sizes = [[len(tokenizer(part["text"], add_special_tokens=False)["input_ids"]) for part in row] for row in parts]
    long, unanswered = sum(1 + sum(size) > 24 for size in sizes), sum(1 + size[0] >= 24 for size in sizes)
    lost = (
        {"truncated": long, "too_long": 0, "unsupervised": unanswered}
        if overlong == "truncate"
        else {"truncated": 0, "too_long": 0, "unsupervised": 0}
    )
    assert unanswered == 2 and report["data"]["test"] == {"rows": 39, **lost}
    notes = [
        f"{long} of 39 ({100 * long / 39:.3g} %) rows of test were cut to 24 tokens",
        "2 of 39 (5.13 %) rows of test have no token to train on: they are not evaluated",
    ]
    told = [[line.startswith(note) for line in report["notes"]].count(True) for note in notes]
    assert told == ([1, 1] if overlong == "truncate" else [0, 0])
    page = (out / "report.html").read_text()
    assert ("Rows that the model saw in part" in page) == (overlong == "truncate")
    assert all(note in page for note in report["notes"])
    nll, count, size = (sum(row[name] for row in found) for name in ("nll", "tokens", "bytes"))
    assert report["metrics"]["loss"] == pytest.approx(nll / count)
    assert report["metrics"]["perplexity"] == pytest.approx(math.exp(nll / count))
    assert report["metrics"]["bits_per_byte"] == pytest.approx(nll / math.log(2) / size)
    assert (report["tokens"], report["cut"]) == (count, sum(row["cut"] for row in found))
    low, high = report["intervals"]["bits_per_byte"]
    assert low < report["metrics"]["bits_per_byte"] < high


def test_a_large_vocabulary_is_evaluated_in_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No forward pass makes more logits than the limit, and the losses are the same."""
    from trnflow.tasks.evaluation.models import load_model

    rows = small_models.random_rows(12, "causal_lm", longest=16, seed=2)
    packed = small_models.packed_rows(tmp_path / "rows", "causal_lm", {"test": {16: [[row] for row in rows]}})
    model = load_model(small_models.llama(tmp_path / "llama").path, "causal_lm")
    split, seen = Split(packed, "test"), list[int]()
    plain = token_losses(model, split, 8, lambda done: None)
    monkeypatch.setattr(forward, "LOGITS", 3 * 16 * small_models.VOCABULARY * 4)
    monkeypatch.setattr(forward, "SLICE", 5)
    narrow = token_losses(model, split, 8, seen.append)
    assert seen == [3, 6, 9, 12]
    np.testing.assert_allclose(narrow.nll, plain.nll, rtol=1e-5)
    assert narrow.tokens.tolist() == plain.tokens.tolist()


def test_one_class_is_warned_of(tmp_path: Path) -> None:
    said: list[Meta] = []
    bench = new_bench(tmp_path)
    bench.said = said
    (tmp_path / "texts").mkdir()
    import pyarrow as pa

    pq.write_table(pa.table({"text": ["a", "b", "c"], "label": [1, 1, 1]}), tmp_path / "texts/test.parquet")
    packed = small_models.packed_rows(
        tmp_path / "rows", "classification", {"test": {16: [[([5, 6], 1)], [([7, 8], 1)], [([9, 4], 1)]]}}
    )
    texts = Input(tmp_path / "texts", "texts", {}, "sha256:texts")
    out, report = evaluate(bench, texts, packed, small_models.bert(tmp_path / "bert"))
    assert any("all rows of test have the label joy" in line for line in report["notes"])
    assert "auc" not in report["metrics"] and math.isfinite(report["metrics"]["log_loss"])
    assert (out / "calibration.png").read_bytes().startswith(b"\x89PNG")


class Page(HTMLParser):
    """A page as a browser takes it: the tags with their attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def loads_nothing(self) -> None:
        """Assert that nothing runs, nothing is loaded from elsewhere, and that the page's own policy says so."""
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        assert ("meta", {"http-equiv": "Content-Security-Policy", "content": policy}) in self.tags
        assert not {tag for tag, _ in self.tags} & {"script", "link", "iframe", "object", "embed", "base", "form", "a"}
        for _, attributes in self.tags:
            assert not any(name.startswith("on") for name in attributes)
            assert str(attributes.get("src", "data:")).startswith("data:image/png;base64,") or "src" not in attributes
            assert not {"href", "srcset", "background", "style"} & attributes.keys()


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> {{ 7 * 7 }}"


def test_the_page_shows_hostile_text_as_text(tmp_path: Path) -> None:
    import pyarrow as pa

    bench = new_bench(tmp_path)
    (tmp_path / "texts").mkdir()
    pq.write_table(pa.table({"text": [HOSTILE] * 4, "label": [0, 1, 2, 0]}), tmp_path / "texts/test.parquet")
    chunks = [[([5 + number, 6], number % 3)] for number in range(4)]
    packed = small_models.packed_rows(tmp_path / "rows", "classification", {"test": {16: chunks}})
    packed.meta["labels"] = ["<b>anger</b>", '"joy"', "sad & co"]
    texts = Input(tmp_path / "texts", "texts", {}, "sha256:texts")
    out, report = evaluate(bench, texts, packed, small_models.bert(tmp_path / "bert"))
    html = (out / "report.html").read_text()
    page = Page(html)
    page.loads_nothing()
    assert page.text.count(HOSTILE) == len(report["worst"]) > 0
    assert all(label in page.text for label in packed.meta["labels"])
    assert f"{report['metrics']['accuracy']:.4g}" in page.text
    assert sum(tag == "img" for tag, _ in page.tags) == 2
    assert str(tmp_path) not in html


def test_answers_and_losses_stand_in_the_order_of_their_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), tmp_path / "test.parquet")
    given: Any = SimpleNamespace(texts=tmp_path / "test.parquet", places=lambda rows: {})
    write_answers({"label": [3.0, 1.0, 2.0]}, np.array([0.3, 0.1, 0.2]), np.array([2, 0, 1]), given, tmp_path / "to")
    found = pq.read_table(tmp_path / "to").to_pydict()
    assert (found["row"], found["text"], found["label"]) == ([1, 2, 3], ["a", "b", "c"], [1.0, 2.0, 3.0])
    assert found["loss"] == [0.1, 0.2, 0.3]
