"""The evaluation's page of many classes, opened in chromium: pairs as scikit-learn counts them, rows as pandas reads the user's
file."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import small_models
from tests.helpers.browser import Page, browser_at
from tests.helpers.data_stages import Bench, new_bench, table
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.evaluate_model import EvaluateConfig, evaluate_model
from trnflow.tasks.evaluation.columns import ClassPredictions, save_columns
from trnflow.tasks.evaluation.curves import drawn_curves
from trnflow.tasks.evaluation.evaluated_rows import EvaluatedRows
from trnflow.tasks.evaluation.plots import short, short_names
from trnflow.tasks.evaluation.predictions import write_answers
from trnflow.tasks.evaluation.report_page import evaluation_part
from trnflow.tasks.evaluation.row_losses import source_rows
from trnflow.tasks.kinds.targets import Outputs
from trnflow.tasks.stage import read_json

TABLES = """JSON.stringify([...document.querySelectorAll('table')].map(
    table => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent))))"""
"""The cells of the page's tables."""
WIDE = "document.documentElement.scrollWidth > window.innerWidth"
NAMES = [f"{what}_{how}" for what in ("card_payment", "top_up", "transfer", "exchange", "refund", "pin", "address")
         for how in ("fee_charged", "not_recognised", "declined", "reverted", "limits", "timing", "failed", "pending",
                     "wrong_amount", "cancelled", "by_bank_transfer")]  # fmt: skip
"""77 classes."""


class Evaluated(NamedTuple):
    """A made evaluation. folder: its files; file: the user's."""

    folder: Path
    file: Path

    @property
    def report(self) -> Meta:
        report: Meta = read_json(self.folder / "report.json")
        return report

    @property
    def predictions(self) -> pd.DataFrame:
        return pq.read_table(self.folder / "predictions.parquet").drop_columns("probabilities").to_pandas()


def evaluated(root: Path, rows: Sequence[Meta], **data: Any) -> Evaluated:
    """Evaluate made predictions of rows in a csv file of the user's."""
    file = written(root / "mine" / "tickets.csv", rows)
    return Evaluated(predicted(new_bench(root), file.parent, **data), file)


def written(file: Path, rows: Sequence[Meta]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return file


def predicted(bench: Bench, source: Path, **data: Any) -> Path:
    """Evaluate made predictions of a user's file or folder, of which three in ten are wrong; return the evaluation's folder."""
    settings = {"text": "body", "label": "team", "split": {"test": 0.4}, **data}
    return evaluation_of(bench, bench.rows(source=str(source), **settings))


def evaluation_of(bench: Bench, loaded: Input) -> Path:
    texts, packed = packed_texts(bench, loaded, task="classification")
    return evaluated_page(bench, loaded, texts, packed, made_predictions(bench, texts, packed))


def packed_texts(bench: Bench, loaded: Input, **format: Any) -> tuple[Input, Input]:
    small_models.tokenizer(bench.root)
    texts = bench.texts(loaded, **format)
    model = {"tokenizer": str(bench.root), "config": {"model_type": "bert"}}
    return texts, bench.packed(bench.tokens(texts, model, max_length=16), strategy="pad", chunk_length=16)


def evaluated_page(bench: Bench, loaded: Input, texts: Input, packed: Input, made: Input) -> Path:
    out = bench.workdir()
    evaluate_model(EvaluateConfig(baseline=None), texts, packed, made, loaded, out=out)
    return out.path


def made_predictions(bench: Bench, texts: Input, packed: Input) -> Input:
    labels, draw = texts.meta["labels"], np.random.default_rng(0)
    expected = np.array(table(texts, "test")["label"])[source_rows(packed, "test")]
    # wrong ones are near: some pairs have many rows
    others = (expected + draw.geometric(0.6, len(expected))) % len(labels)
    predicted = np.where(draw.random(len(expected)) < 0.3, others, expected)
    probabilities = draw.dirichlet(np.ones(len(labels)), len(expected)).astype(np.float32)
    loss = -np.log(draw.random(len(expected)))
    return made_artifact(bench, ClassPredictions(expected, predicted, probabilities, loss), texts)


def made_artifact(bench: Bench, found: ClassPredictions | Outputs, texts: Input) -> Input:
    """What `predict_rows` would make."""
    out = bench.workdir()
    save_columns(found, out.path)
    meta = {
        "labels": texts.meta["labels"], "task": texts.meta["task"], "split": "test", "rows": len(found.expected),
        "export_metrics": {}, "export": {"target": "none", "note": "not compared"},
    }  # fmt: skip
    return Input(out.path, "evaluation.shard", meta, "sha256:made")


def tickets(count: int, names: Sequence[str] = NAMES) -> list[Meta]:
    """Rows of a user's file. `id` and `note` are columns that no setting names."""
    return [
        {"id": f"T-{number}", "body": f"the cat {number} sat on mat {number}", "team": names[number % len(names)],
         "note": f"<b onclick='x()'>note {number}</b> " + "long " * (number % 40)}
        for number in range(count)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """77 classes; the user's file has rows that are dropped: blank ones and repeated ones."""
    rows = tickets(2000)
    for at in (0, 7, 500):
        rows.insert(at, {**rows[at], "body": ""})
    rows.insert(3, rows[1500])
    return evaluated(tmp_path_factory.mktemp("many"), rows, nulls="drop", dedupe=True)


@pytest.fixture(scope="module")
def page(many: Evaluated, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with browser_at((many.folder / "report.html").as_uri(), tmp_path_factory.mktemp("browser")) as opened:
        opened.wait_for("document.readyState === 'complete' && document.querySelector('table')")
        yield opened


def tables(page: Page) -> list[pd.DataFrame]:
    return [pd.DataFrame(rows[1:], columns=rows[0]) for rows in json.loads(page.value(TABLES))]


def test_the_most_confused_pairs_are_scikit_learns(many: Evaluated, page: Page) -> None:
    from sklearn.metrics import confusion_matrix

    found, labels = many.predictions, sorted(NAMES)
    matrix = confusion_matrix(found["label"], found["predicted"], labels=labels)
    counts = {
        (true, predicted): int(matrix[i, j])
        for i, true in enumerate(labels)
        for j, predicted in enumerate(labels)
        if i != j
    }
    shown = next(each for each in tables(page) if "predicted class" in each.columns)
    assert len(shown) == 20
    assert [int(count) for count in shown["rows"]] == sorted(counts.values(), reverse=True)[:20]
    user = pd.read_csv(many.file)
    for line in shown.itertuples(index=False):
        true, predicted, count, share, numbers = line
        assert int(count) == counts[true, predicted]
        assert share == f"{counts[true, predicted] / matrix[labels.index(true)].sum():.1%}"
        rows = found[(found["label"] == true) & (found["predicted"] == predicted)]["file_row"]
        listed = [int(number) for number in re.findall(r"\d+", numbers)]
        assert listed == rows.tolist()[:5] and ("…" in numbers) == (len(rows) > 5)
        assert (user["team"].iloc[np.array(listed) - 1] == true).all()
    body = page.value("document.body.innerText")
    assert body.index("Classes that are confused most") < body.index("Confusion matrix")


def test_predictions_and_worst_errors_name_the_rows_of_the_users_file(many: Evaluated, page: Page) -> None:
    user, found = pd.read_csv(many.file), many.predictions
    assert (found["file"] == "tickets.csv").all()
    mine = user.iloc[found["file_row"].to_numpy() - 1]
    assert mine["body"].tolist() == found["text"].tolist() and mine["team"].tolist() == found["label"].tolist()
    text = page.value("document.body.innerText")
    for entry in many.report["worst"]:
        row = user.iloc[entry["file_row"] - 1]
        assert entry["columns"]["id"] == row["id"] and entry["text"] == row["body"]
        note = " ".join(row["note"].split())
        assert entry["columns"]["note"] in (note, f"{note[:79]}…")
        assert f"Row {entry['file_row']} of tickets.csv (row {entry['row']} of test): " in text
        assert f"id: {row['id']}" in text and entry["columns"]["note"] in text


def test_the_page_runs_and_loads_nothing_and_fits_a_phone(many: Evaluated, page: Page) -> None:
    assert [address for address in page.requests if not address.startswith("data:")] == [
        (many.folder / "report.html").as_uri()
    ]
    assert page.value("document.querySelectorAll('[onclick], script, b[onclick]').length") == 0
    shown = "(image => [image.naturalWidth, image.getBoundingClientRect().width])(document.querySelector('.frame img'))"
    full, width = page.value(shown)
    assert full > 2000 and width == full
    page.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
    try:
        assert not page.value(WIDE)
        assert page.value("document.querySelector('.frame').scrollWidth > document.querySelector('.frame').clientWidth")
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")
    assert (many.folder / "report.html").stat().st_size < 1_000_000


ODD = ["<b>bold</b> & <script>alert(1)</script>", "x" * 5_000 + " end", "退款 未到账", "возврат средств", "costs $10 and $20",
       "-", "\u202eright to left", "line\nbreak", "{{ 7 * 7 }}", "'\"", "\u0301", "مرحبا", "🙂"]  # fmt: skip


def test_odd_names_stay_text(tmp_path: Path) -> None:
    names = [*ODD, *(f"class {number}" for number in range(20))]
    made = evaluated(tmp_path, tickets(1500, names))
    report, file = made.report, (made.folder / "report.html").as_uri()
    assert sorted(entry["label"] for entry in report["classes"]) == sorted(names)
    with browser_at(file, tmp_path) as page:
        page.wait_for("document.readyState === 'complete' && document.querySelector('.frame img')")
        assert page.requests == [file] or all(each.startswith("data:") for each in page.requests[1:])
        assert page.value("document.querySelectorAll('script, td b, h3 b').length") == 0
        shown = next(each for each in tables(page) if "support" in each.columns)["class"]
        assert set(shown) == {short(entry["label"], 40) for entry in report["classes"]}
        assert not page.value(WIDE)


@pytest.mark.slow
def test_a_thousand_classes_make_a_page_of_bounded_size(tmp_path: Path) -> None:
    names = [f"a class with a rather long name {'of the same beginning ' * 3}{number}" for number in range(1000)]
    made = evaluated(tmp_path, tickets(4000, names))
    assert len(made.report["classes"]) == 1000 and len(made.report["confused"]) == 20
    assert (made.folder / "report.html").stat().st_size < 1_000_000
    with browser_at((made.folder / "report.html").as_uri(), tmp_path) as page:
        page.wait_for("document.readyState === 'complete' && document.querySelector('.frame img').naturalWidth")
        assert 3000 < page.value("document.querySelector('.frame img').naturalWidth") < 6000


def test_of_several_files_each_row_names_its_own(tmp_path: Path) -> None:
    parts = {"train": (0, 300), "test-1": (300, 400), "test-2": (400, 600)}
    rows = tickets(600, ["one", "two", "three"])
    files = {
        f"{name}.csv": written(tmp_path / "mine" / f"{name}.csv", rows[slice(*part)]) for name, part in parts.items()
    }
    made = Evaluated(predicted(new_bench(tmp_path), tmp_path / "mine", split=None), tmp_path / "mine")
    found, users = made.predictions, {name: pd.read_csv(file) for name, file in files.items()}
    assert set(found["file"]) == {"test-1.csv", "test-2.csv"}
    assert all(users[row.file]["body"].iloc[row.file_row - 1] == row.text for row in found.itertuples())
    pair = made.report["confused"][0]["rows"][0]
    html = (made.folder / "report.html").read_text()
    assert f"<td>{pair['file']} {pair['file_row']}, " in html and "numbers: the first ones of the files" in html


def test_left_out_columns_that_are_no_short_values_stop_nothing(tmp_path: Path) -> None:
    rows = tickets(90, ["one", "two", "three"])
    bad = {5: '"\\ud800"', 7: "[1, 2]", 9: "3"}  # half a character, a list, a number in a column of texts
    lines = [
        json.dumps(row)[:-1] + f', "bad": {bad.get(number, json.dumps(str(number)))}}}'
        for number, row in enumerate(rows)
    ]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tickets.jsonl").write_text("\n".join(lines))
    made = Evaluated(predicted(new_bench(tmp_path), tmp_path / "mine"), tmp_path / "mine" / "tickets.jsonl")
    for entry in made.report["worst"]:
        assert entry["text"] == rows[entry["file_row"] - 1]["body"] and "bad" not in entry.get("columns", {})


def test_worst_errors_of_numbers_name_their_rows_too(tmp_path: Path) -> None:
    """`when` is a kept column that no example is made of; the users' names of both are shown."""
    bench, draw = new_bench(tmp_path), np.random.default_rng(0)
    rows = [{**row, "score": number % 7, "when": f"day {number}"} for number, row in enumerate(tickets(200))]
    file = written(tmp_path / "mine" / "tickets.csv", rows)
    kept = {"score": "score", "date": "when"}
    loaded = bench.rows(source=str(file), text="body", columns=kept, split={"test": 0.4})
    texts, packed = packed_texts(bench, loaded, task="regression", target="score")
    expected = np.array(table(texts, "test")["label"], np.float32)[source_rows(packed, "test")]
    values = (expected + draw.normal(size=expected.shape)).astype(np.float32)
    made = made_artifact(bench, Outputs(expected, values, values, ((values - expected) ** 2).mean(axis=1)), texts)
    folder = evaluated_page(bench, loaded, texts, packed, made)
    report, user = read_json(folder / "report.json"), pd.read_csv(file)
    for entry in report["worst"]:
        row = user.iloc[entry["file_row"] - 1]
        assert (entry["file"], entry["text"], entry["label"]) == ("tickets.csv", row["body"], f"score {row['score']}")
        assert (entry["columns"]["date"], entry["columns"]["id"]) == (row["when"], row["id"])
        assert f"Row {entry['file_row']} of tickets.csv" in (folder / "report.html").read_text()


def test_the_most_frequent_class_is_that_of_train(tmp_path: Path) -> None:
    """Of train "few" is said most often, of test "many"."""
    for split, many, few in (("train", 4, 20), ("test", 15, 10)):
        rows = [{**row, "team": "many" if at < many else "few"} for at, row in enumerate(tickets(many + few))]
        written(tmp_path / "mine" / f"{split}.csv", [{**row, "body": f"{split} {row['body']}"} for row in rows])
    folder = predicted(new_bench(tmp_path), tmp_path / "mine", split=None)
    report, page = read_json(folder / "report.json"), (folder / "report.html").read_text()
    assert report["majority"]["accuracy"] == pytest.approx(10 / 25)
    # in a column of its own: it is no figure of the model
    rows = {
        row[0]: row for row in (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in page.splitlines()) if row
    }
    assert "f1_weighted_majority" not in rows and rows["metric"][-2] == "most frequent class"
    assert rows["accuracy"][-2] == "0.4" and float(rows["f1_weighted"][-2]) < 0.4
    # a metric of the user's own may have any name
    report["metrics"]["vote_majority"] = 0.9
    assert "vote_majority" in [row[0] for row in evaluation_part(folder, report)["metrics"]["rows"]]


def test_answers_and_losses_stand_beside_the_text_that_they_are_of(tmp_path: Path) -> None:
    """In the order of the rows, in whatever order chunks held them."""
    bench = new_bench(tmp_path)
    file = written(tmp_path / "mine" / "tickets.csv", [{**row, "score": row["id"][2:]} for row in tickets(60)])
    loaded = bench.rows(source=str(file), text="body", columns={"score": "score"}, split={"test": 0.4})
    texts = bench.texts(loaded, task="regression", target="score")
    scores = np.array([score for (score,) in table(texts, "test")["label"]])
    rows = np.random.default_rng(0).permutation(len(scores))
    answers = {"label": [*scores[rows]]}
    write_answers(answers, scores[rows] / 2, rows, EvaluatedRows(texts, "test", loaded), tmp_path / "answers")
    found = pd.read_parquet(tmp_path / "answers")
    assert found["row"].tolist() == [*range(1, len(scores) + 1)] and (found["loss"] == found["label"] / 2).all()
    user = pd.read_csv(file).set_index("body").loc[found["text"]]
    assert user["score"].tolist() == found["label"].tolist()


def test_without_the_rows_of_load_data_the_page_counts_the_splits(tmp_path: Path) -> None:
    """As of an evaluation of rows that an earlier version loaded."""
    bench, rows = new_bench(tmp_path), tickets(90, ["one", "two", "three"])
    file = written(tmp_path / "mine" / "tickets.csv", rows)
    loaded = bench.rows(source=str(file), text="body", label="team", split={"test": 0.4})
    shutil.rmtree(loaded.path / "aside")
    folder = evaluation_of(bench, loaded)
    report = read_json(folder / "report.json")
    assert all(entry.keys() & {"file", "file_row", "columns"} == set() for entry in report["worst"])
    assert f"Row {report['worst'][0]['row']}: " in (folder / "report.html").read_text()


@given(st.text(max_size=80), st.integers(8, 60))
def test_a_short_name_keeps_both_ends(label: str, length: int) -> None:
    name, whole = short(label, length), " ".join(label.split())
    assert 0 < len(name) <= max(length, len("(blank)"))
    if len(whole) > length:
        start, end = name.split("…")[0], name.split("…")[-1]
        assert whole.startswith(start) and whole.endswith(end) and len(start) > len(end) > 0
    else:
        assert name == (whole or "(blank)")


def test_the_issues_name_is_shortened_as_it_asks() -> None:
    assert short("card_payment_fee_that_was_charged") == "card_payment_fee…charged"


@given(st.lists(st.text(max_size=60), unique=True, max_size=30))
def test_short_names_of_different_labels_differ(labels: list[str]) -> None:
    names = short_names(labels, 10)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("points", [3, 1001])
def test_a_curve_goes_from_the_first_to_the_last_value_and_what_is_higher_stands_above(points: int) -> None:
    (curve,) = drawn_curves({step: {"loss": 5 - 4 * step / points} for step in range(1, points + 1)})
    places = [tuple(map(float, place.split(","))) for place in curve["points"].split()]
    assert (curve["first"], curve["last"], curve["low"]) == (1, points, "1") and len(places) <= 500
    assert places == sorted(places)  # from left to right, and from above, where y is 0, down
    (left, top), (right, bottom) = places[0], places[-1]
    assert (left, top, right, bottom) == (64, 8, 410, 158)
