"""Verdicts on made evaluations whose truth is known, each cause planted, and sound ones that get no complaint."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import pearsonr

from tests.helpers.baselines import packed
from tests.helpers.data_stages import new_bench
from tests.training.toys import minilm
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.evaluation import classification
from trnflow.tasks.evaluation.columns import ClassPredictions, RowLosses
from trnflow.tasks.evaluation.metrics import ece
from trnflow.tasks.evaluation.metrics.accuracy import accuracy
from trnflow.tasks.evaluation.metrics.f1_macro import f1_macro
from trnflow.tasks.evaluation.metrics.row_sums import RowSums
from trnflow.tasks.evaluation.scores import intervals_of, majority, values_of
from trnflow.tasks.evaluation.verdicts import comparison
from trnflow.tasks.evaluation.verdicts.comparison import mcnemar
from trnflow.tasks.evaluation.verdicts.facts import Facts, Known, a_few, figure
from trnflow.tasks.evaluation.verdicts.near_texts import near_texts
from trnflow.tasks.evaluation.verdicts.rows import known_rows
from trnflow.tasks.evaluation.verdicts.script import token_counts, unknown_share
from trnflow.tasks.evaluation.verdicts.verdict import MOST, verdict
from trnflow.tasks.kinds.preference import Rewards
from trnflow.tasks.kinds.targets import Outputs
from trnflow.tasks.kinds.unpaired_preference import MarkedRewards

TASK = "classification"
CAUSES = {
    "worse": "^the model is worse than",
    "no better": "do not show that the model is better",
    "own labels": "has a label of its own",
    "one class": "have the label",
    "one answer": "for every row",
    "falling": "was still falling",
    "over-trained": "over-trained",
    "never": "never predicted",
    "rare": "on rare (labels|classes) the model is worse",
    "too sure": "probabilities are too high",
    "unsure": "probabilities are too low",
    "cut": "were cut to",
    "left out": "not evaluated",
    "alike": "have the text of a row of train",
    "script": "does not know the script",
    "nothing": "began from nothing",
    "few": "are few",
    "endless": "did not end",
}
"""{cause: a pattern that only its sentence has}"""


def said(lines: Sequence[str]) -> set[str]:
    """Return the causes of a verdict, whose first line is none."""
    assert 1 <= len(lines) <= MOST and all("\n" not in line for line in lines)
    return {name for name, words in CAUSES.items() if any(re.search(words, line) for line in lines[1:])}


def lost(rows: int, **counts: int) -> Any:
    return {"rows": rows, "truncated": 0, "too_long": 0, "unsupervised": 0, **counts}


def quick(found: ClassPredictions) -> dict[str, float]:
    return {name: entry(found) or 0.0 for name, entry in (("accuracy", accuracy), ("f1_macro", f1_macro))}


def facts_of(
    expected: Any,
    predicted: Any,
    confidence: Any,
    baseline: Any = None,
    classes: int | None = None,
    whole: bool = True,
    **more: Any,
) -> Facts:
    """Return an evaluation of classes. confidence: float [rows], of what is predicted; baseline: what it predicts; whole:
    with all metrics and intervals."""
    expected, predicted = np.asarray(expected), np.asarray(predicted)
    classes = classes or int(max(expected.max(), predicted.max())) + 1
    probabilities = np.repeat((1 - np.asarray(confidence))[:, None] / max(classes - 1, 1), classes, axis=1)
    probabilities[np.arange(len(predicted)), predicted] = confidence
    own = probabilities[np.arange(len(expected)), expected]
    found = ClassPredictions(expected, predicted, probabilities.astype(np.float32), -np.log(np.maximum(own, 1e-9)))
    measure = (lambda columns: values_of(TASK, columns)) if whole else quick
    labels, matrix = [f"team {number}" for number in range(classes)], classification.confusion(found, classes)
    report: Any = {
        "task": TASK, "split": "test", "asked": "test", "rows": len(expected), "metrics": measure(found),
        "intervals": intervals_of(TASK, found, matrix) if whole else {}, "majority": majority(expected, found, classes),
        "calibration": ece.calibration(found), "data": {"test": more.pop("lost", lost(len(expected)))}, "max_length": 128,
    }  # fmt: skip
    others = {}
    if baseline is not None:
        others = {"baseline": found._replace(predicted=np.asarray(baseline))}
        report["baselines"] = [{"name": "baseline", "metrics": measure(others["baseline"])}]
    return Facts(report, found, others, labels, rows=np.arange(len(expected)), **more)


def curves(losses: Sequence[float], evaluations: Mapping[int, Mapping[str, float]] | None = None) -> list[Meta]:
    """Return training's rows of a linear schedule. evaluations: {step: its metrics}."""
    total = len(losses)
    rows = {at: {"step": at, "loss": loss, "learning_rate": 1 - (at - 1) / total} for at, loss in enumerate(losses, 1)}
    for step, metrics in (evaluations or {}).items():
        rows.setdefault(step, {"step": step}).update(metrics)
    return [rows[step] for step in sorted(rows)]


def trained(rows: list[Meta], **more: Any) -> Meta:
    return {"curves": rows, "steps": rows[-1]["step"], "settings": {"epochs": 4, "max_steps": None}, **more}


def converged(draw: np.random.Generator, total: int = 100, pace: float = 8.0, noise: float = 0.05) -> list[float]:
    """Return losses that fall by e in 1/pace of the learning rate's sum, to a tenth of the first."""
    done = np.cumsum(1 - np.arange(total) / total)
    fall = np.exp(-pace * done / done[-1])
    return [*np.maximum(0.2 + 1.8 * fall + noise * draw.standard_normal(total), 0.01)]


@pytest.mark.parametrize(
    ("training", "helps"),
    [
        ({}, "may help (train.epochs and train.learning_rate; `auto` chooses both)"),
        (trained(curves([2.0] * 100)), "may help (train.epochs and train.learning_rate; `auto` chooses both)"),
        (trained(curves([2.0] * 400)), "may help (train.epochs and train.learning_rate)"),
        (trained(curves([*np.linspace(2, 1, 400)])), "may help (train.epochs and train.learning_rate)"),
        (
            trained(curves([*np.linspace(2, 1, 100)]), settings={"epochs": 20, "max_steps": None}),
            "may help (train.epochs and train.learning_rate)",
        ),
        (
            trained(curves(converged(np.random.default_rng(0), 400))),
            "its loss no longer falls: more rows of train or another model (model.source) may help",
        ),
    ],
)
def test_what_helps_a_model_that_is_worse(training: Meta, helps: str) -> None:
    """`auto` is proposed where it would train for longer alone, and training where the loss still falls."""
    expected = np.arange(400) % 2
    for share, why in ((0.6, "the model is worse than"), (0.9, "do not show that the model is better")):
        predicted = np.where(np.arange(400) < 400 * share, expected, 1 - expected)
        baseline = np.where(np.arange(400) < 360, expected, 1 - expected)
        lines = verdict(facts_of(expected, predicted, np.full(400, share), baseline, training=training))
        (line,) = [line for line in lines if why in line]
        assert helps in line


class Made:
    """A made evaluation. truth: the causes that are so; clear: those that must be said, if nothing else is in the way."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        rows, classes = int(draw.choice([40, 100, 300, 1000, 3000])), int(draw.choice([2, 5, 20]))
        # a third equally good, a third better, a third worse
        right = draw.uniform(max(0.55, 1.2 / classes), 0.9)
        base = right + float(draw.choice([0.0, -0.15, 0.1]))
        expected = draw.choice(classes, rows, p=draw.dirichlet(np.full(classes, 20.0)))
        self.truth: set[str] = {"worse"} if base > right else set()
        predicted, baseline = (self.answers(draw, expected, classes, share) for share in (right, base))
        missing = draw.random() < 0.2 and classes > 2
        if missing:  # the last class is never predicted
            predicted[predicted == classes - 1] = 0
            self.truth |= {"never", "worse", "rare"}
        shift = float(draw.choice([0.0, 0.0, 0.25, -0.25]))
        share = float((predicted == expected).mean())
        # of which the mean is how often it is right, shifted
        confidence = np.clip(draw.normal(share + shift, 0.05, rows), 1 / classes + 1e-3, 0.999)
        if shift:
            self.truth.add("too sure" if confidence.mean() > share else "unsure")
        pace = float(draw.choice([8.0, 8.0, 0.7]))
        self.truth |= {"falling"} if pace == 0.7 else set()
        twice, cut = draw.random() < 0.2, draw.random() < 0.2
        self.truth |= {name for name, is_so in (("alike", twice), ("cut", cut)) if is_so}
        self.facts = facts_of(
            expected, predicted, confidence, baseline, classes, whole=False,
            training=trained(curves(converged(draw, pace=pace, noise=float(draw.choice([0.02, 0.1]))))),
            known=Known(draw.random(rows) < (0.3 if twice else 0.005), draw.random(rows) < 0.005),
            lost=lost(rows, truncated=int(rows * (0.6 if cut else 0.1))),
        )  # fmt: skip

    @staticmethod
    def answers(draw: np.random.Generator, expected: Any, classes: int, share: float) -> Any:
        other = (expected + draw.integers(1, classes, len(expected))) % classes
        return np.where(draw.random(len(expected)) < share, expected, other)


ALWAYS = {"no better", "few"}
"""What is said of the rows, and never of the model: true by its own figures."""


def test_of_200_made_evaluations_at_most_two_verdicts_are_false() -> None:
    made = [Made(seed) for seed in range(200)]
    told = [said(verdict(each.facts)) - ALWAYS for each in made]
    false = [(at, name) for at, (each, names) in enumerate(zip(made, told, strict=True)) for name in names - each.truth]
    assert len(false) <= 2, false
    # three causes at most are said, and of few rows chance may hide one
    for name in ("falling", "never", "cut", "alike", "worse"):
        true = [
            names for each, names in zip(made, told, strict=True) if name in each.truth and each.facts.count >= 1000
        ]
        found = [name in names for names in true if name in names or len(names) < MOST - 1]
        assert len(found) >= 5 and sum(found) >= 0.9 * len(found), name


@pytest.mark.parametrize("seed", range(10))
def test_a_sound_evaluation_has_one_line(seed: int) -> None:
    draw = np.random.default_rng(seed)
    expected = draw.integers(0, 6, 600)
    right, base = draw.random(600) < 0.93, draw.random(600) < 0.8
    predicted, baseline = (np.where(each, expected, (expected + 1) % 6) for each in (right, base))
    evaluations = {
        at: {"eval_loss": 0.3 + 1.5 * math.exp(-at / 12) + 0.02 * at / 100, "eval_accuracy": 0.9}
        for at in range(0, 101, 10)
    }
    rows = curves(converged(draw), evaluations)
    (line,) = verdict(facts_of(expected, predicted, np.full(600, 0.93), baseline, training=trained(rows)))
    accuracy, theirs = (figure(float((each == expected).mean())) for each in (predicted, baseline))
    assert line == f"accuracy {accuracy} on 600 rows of test; the simple baseline has {theirs}"


def plain(draw: np.random.Generator, rows: int = 400, right: float = 0.9, classes: int = 4) -> tuple[Any, Any]:
    expected = draw.integers(0, classes, rows)
    return expected, np.where(draw.random(rows) < right, expected, (expected + 1) % classes)


def test_a_worse_model_is_named_with_both_figures() -> None:
    expected, predicted = plain(np.random.default_rng(1), right=0.71)
    _, baseline = plain(np.random.default_rng(1), right=0.87)
    lines = verdict(facts_of(expected, predicted, np.full(400, 0.71), baseline))
    assert said(lines) == {"worse"} and "train.learning_rate" in lines[1]
    for line in lines[:2]:
        assert figure((predicted == expected).mean()) in line and figure((baseline == expected).mean()) in line


def test_mcnemar_is_the_sign_test_on_rows_that_one_alone_has_right() -> None:
    from scipy.stats import binom

    assert mcnemar(3, 12) == pytest.approx((binom.cdf(3, 15, 0.5), binom.sf(2, 15, 0.5)))
    assert mcnemar(0, 0) == (1.0, 1.0)


def test_without_a_baseline_the_most_frequent_class_is_beside_it() -> None:
    expected = np.array([0] * 300 + [1] * 100)
    lines = verdict(
        facts_of(expected, np.r_[np.zeros(290, int), np.ones(10, int), np.zeros(100, int)], np.full(400, 0.73))
    )
    assert "always saying the most frequent class has 0.75" in lines[0] and "no better than always" in lines[1]


def test_classes_that_are_never_predicted_are_named_and_counted() -> None:
    expected, predicted = plain(np.random.default_rng(2), rows=600, classes=20)
    predicted[predicted >= 12] = 3
    lines = verdict(facts_of(expected, predicted, np.full(600, 0.55), classes=20))
    (line,) = (line for line in lines if "never" in line)
    assert "of 20 classes" in line and "team 1" in line and "and 3 more" in line and "class_weights" in line
    taught = np.r_[np.full(18, 9), 0, 0]
    told = verdict(facts_of(expected, predicted, np.full(600, 0.55), classes=20, taught=taught))
    assert "train has no rows of team 18, team 19; " in next(line for line in told if "never" in line)
    assert a_few(["a", "b"]) == "a, b" and a_few([*"abcdefg"]) == "a, b, c, d, e and 2 more"


def test_rows_of_one_class_and_answers_of_one_class() -> None:
    draw, ones = np.random.default_rng(3), np.ones(200, int)
    assert "all rows of test have the label team 1" in verdict(facts_of(ones, ones, np.full(200, 0.99)))[1]
    nearly = np.where(np.arange(200) < 6, 0, 1)
    assert "97 % of the rows" in verdict(facts_of(nearly, nearly, np.full(200, 0.99)))[1]
    expected, _ = plain(draw)
    assert said(verdict(facts_of(expected, np.zeros(400, int), np.full(400, 0.26), classes=4))) >= {"one answer"}


def test_probabilities_that_are_far_from_the_accuracy() -> None:
    expected, predicted = plain(np.random.default_rng(4), right=0.8)
    assert said(verdict(facts_of(expected, predicted, np.full(400, 0.99)))) == {"too sure"}
    assert said(verdict(facts_of(expected, predicted, np.full(400, 0.4)))) == {"unsure"}
    assert said(verdict(facts_of(expected, predicted, np.full(400, 0.85)))) == set()
    for sure, what in ((0.99, "high"), (0.4, "low")):
        (line,) = verdict(facts_of(expected, predicted, np.full(400, sure), temperature=1.5))[1:]
        assert f"too {what}, though rows of validation set them; more of these that are like test help" in line
    few = np.arange(30) % 4  # of so few rows chance may move it so far
    right = np.where(np.arange(30) < 24, few, (few + 1) % 4)
    assert "too sure" not in said(verdict(facts_of(few, right, np.full(30, 0.93))))


IMDB = {
    0: (0.694, 0.44), 29: (0.593, 0.68), 58: (0.498, 0.78), 87: (0.636, 0.72), 116: (0.71, 0.76), 145: (1.034, 0.72),
    174: (1.104, 0.78), 203: (1.531, 0.72), 232: (1.241, 0.78), 261: (1.146, 0.82), 290: (1.16, 0.82), 319: (1.165, 0.82),
}  # fmt: skip
"""Evaluations of a training of MiniLM on 500 reviews of IMDB by `new`'s recipe: {step: (loss, accuracy)}."""


def evaluations(points: Mapping[int, tuple[float, float]]) -> dict[int, dict[str, float]]:
    return {step: {"eval_loss": loss, "eval_accuracy": right} for step, (loss, right) in points.items()}


def test_a_loss_that_rises_while_accuracy_stays_is_a_sentence_about_confidence() -> None:
    expected, predicted = plain(np.random.default_rng(5), right=0.81, classes=2)
    losses = [*np.linspace(0.7, 0.01, 200), *np.full(119, 0.01)]
    given: Any = {"training": trained(curves(losses, evaluations(IMDB)), settings={"epochs": 11, "max_steps": None})}
    lines = verdict(facts_of(expected, predicted, np.full(400, 0.99), **given))
    assert said(lines) == {"too sure"}
    assert (
        "rose from 0.498 from epoch 2 on (update 58 of 319) to 1.17" in lines[1]
        and "consolidate.calibrate=true helps" in lines[1]
    )


def test_a_loss_that_rises_while_accuracy_falls_is_over_training() -> None:
    expected, predicted = plain(np.random.default_rng(5), right=0.81, classes=2)
    points = {0: (0.69, 0.5), 25: (0.4, 0.9), 50: (0.5, 0.86), 75: (0.6, 0.8), 100: (0.8, 0.76)}
    rows = curves([*np.linspace(0.7, 0.05, 100)], evaluations(points))
    given: Any = {"training": trained(rows), "packed": {"rows": {"validation": {"128": 400}}}}
    facts = facts_of(expected, predicted, np.full(400, 0.82), **given)
    assert said(verdict(facts)) == {"over-trained"}
    assert "from epoch 1 on (update 25 of 100)" in verdict(facts)[1] and "from 0.9 to 0.76" in verdict(facts)[1]
    # the best evaluation's weights are the result
    assert said(verdict(replace(facts, training={**facts.training, "best_step": 25}))) == set()
    few = replace(facts, packed={"rows": {"validation": {"128": 12}}})  # on which chance moves accuracy as far
    assert said(verdict(few)) == set()


def test_a_training_that_ends_too_early() -> None:
    expected, predicted = plain(np.random.default_rng(6), right=0.71)
    early = trained(curves(converged(np.random.default_rng(7), pace=0.5)))
    lines = verdict(facts_of(expected, predicted, np.full(400, 0.71), training=early))
    assert said(lines) == {"falling"} and "train.epochs" in lines[1]
    # learnt by heart: training's loss falls on, validation's does not
    level = {at: {"eval_loss": 2.0 - 1.4 * min(at / 40, 1)} for at in range(0, 101, 10)}
    by_heart = trained(curves([*np.linspace(2.0, 0.02, 100)], level))
    assert said(verdict(facts_of(expected, predicted, np.full(400, 0.71), training=by_heart))) == set()


def test_each_row_with_a_label_of_its_own() -> None:
    expected = np.arange(150, 180)
    taught = np.r_[np.ones(150, np.int64), np.zeros(30, np.int64)]
    given = (expected, np.full(30, 20), np.full(30, 0.05))
    lines = verdict(facts_of(*given, classes=180, taught=taught))
    assert "own labels" in said(lines) and "each of the 150 rows of train" in lines[1]
    assert "own labels" not in said(verdict(facts_of(*given, classes=180, taught=np.r_[2, taught[1:]])))


def test_rows_of_train_that_are_evaluated(tmp_path: Path) -> None:
    for split, texts in {"train": ["A  Cat", "dog", "bird"], "test": ["a cat", "DOG ", "cow"]}.items():
        pq.write_table(pa.table({"text": texts, "label": [0, 1, 2]}), tmp_path / f"{split}.parquet")
    texts = Input(tmp_path, "texts", {}, "sha256:1")
    found = known_rows(texts, "test")
    assert found is not None and found.equal.tolist() == [True, True, False] and not found.near.any()
    assert known_rows(texts, "train") is None
    expected, predicted = plain(np.random.default_rng(8), right=0.8)
    known = Known(np.arange(400) < 100, np.zeros(400, np.bool_))
    predicted[:100] = expected[:100]
    lines = verdict(facts_of(expected, predicted, np.full(400, 0.85), known=known))
    others = figure((predicted == expected)[100:].mean())
    assert (
        said(lines) == {"alike"}
        and "of 400 rows of test 100 have" in lines[1]
        and f"1 on them, {others} on the others" in lines[1]
    )
    both = Known(np.arange(400) < 10, (np.arange(400) >= 10) & (np.arange(400) < 100))
    lines = verdict(facts_of(expected, predicted, np.full(400, 0.85), known=both))
    assert "10 have the text of a row of train and 90 differ from a row of train by one word or punctuation" in lines[1]
    assert "1 on them" in lines[1] and "data.dedupe" in lines[1] and "data.split_by" in lines[1]
    near = Known(np.zeros(400, np.bool_), np.arange(400) < 100)
    lines = verdict(facts_of(expected, predicted, np.full(400, 0.85), known=near))
    assert "of 400 rows of test 100 differ from a row of train" in lines[1] and "data.dedupe" not in lines[1]


LINE = "the parcel that I ordered last week never came"
CHANGED = {
    LINE.replace("week", "month"): True,
    "The parcel, that I ordered last week: never came!": True,
    f"{LINE} yet": True,
    f"oh {LINE}": True,
    LINE.replace("last ", ""): True,
    LINE.replace("week", "month").replace("parcel", "letter"): False,
    LINE.replace("last week", "week last"): False,
    "the parcel never came": False,
}


def test_rows_that_differ_from_a_row_of_train_by_a_word(tmp_path: Path) -> None:
    for split, texts in {"train": [LINE, "a bird", "the parcel never came!"], "test": [*CHANGED]}.items():
        pq.write_table(pa.table({"text": texts, "label": [0] * len(texts)}), tmp_path / f"{split}.parquet")
    found = known_rows(Input(tmp_path, "texts", {}, "sha256:1"), "test")
    assert found is not None and not found.equal.any() and found.near.tolist() == [*CHANGED.values()]


@pytest.mark.parametrize("seed", range(5))
def test_texts_near_others_are_those_that_a_comparison_word_by_word_finds(seed: int) -> None:
    draw = np.random.default_rng(seed)
    others, texts = (
        [" ".join(map(str, draw.integers(0, 2, draw.integers(1, 14)))) for _ in range(size)] for size in (20, 200)
    )
    wanted = [
        len(text.split()) >= 8 and any(are_near(text.split(), other.split()) for other in others) for text in texts
    ]
    assert near_texts(others, texts).tolist() == wanted and 0 < sum(wanted) < 150


def are_near(text: list[str], other: list[str]) -> bool:
    if len(text) == len(other):
        return sum(a != b for a, b in zip(text, other, strict=True)) <= 1
    short, long = sorted((text, other), key=len)
    return len(long) == len(short) + 1 and any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


REAL = {
    "emotion": ("emotion/train.parquet", "emotion/test.parquet"),
    "goemotions": ("goemotions/train.tsv", "goemotions/test.tsv"),
    "stsbenchmark": ("stsbenchmark/sts-train.csv", "stsbenchmark/sts-test.csv"),
    "amharic": ("sentiment_amharic/train.tsv", "sentiment_amharic/test.tsv"),
}


@pytest.mark.parametrize("name", REAL)
def test_real_sets_have_few_rows_near_train(name: str, shared: Path) -> None:
    train, test = ([text.casefold() for text in real_texts(shared / "data" / file)] for file in REAL[name])
    assert len(set(train)) > 4000 and len(test) > 1000
    assert near_texts(train, test).mean() < 0.02


def real_texts(file: Path) -> list[str]:
    """Return the texts of a set; of a table's lines the longest cell, of pairs both texts."""
    if file.suffix == ".parquet":
        return pq.read_table(file)["text"].to_pylist()
    lines = [line.split("\t") for line in file.read_text(encoding="utf-8").split("\n")]
    return [" ".join(line[5:7]) if file.suffix == ".csv" else max(line, key=len) for line in lines]


def test_rows_that_were_cut_or_left_out() -> None:
    expected, predicted = plain(np.random.default_rng(9))
    given = (expected, predicted, np.full(400, 0.9))
    assert (
        "160 of 400 (40 %) rows of test were cut to 128 tokens"
        in verdict(facts_of(*given, lost=lost(400, truncated=160)))[1]
    )
    assert said(verdict(facts_of(*given, lost=lost(400, truncated=120)))) == set()
    assert said(verdict(facts_of(*given, lost=lost(420, too_long=20)))) == {"left out"}


def test_few_rows_have_an_interval() -> None:
    expected, predicted = plain(np.random.default_rng(10), rows=60, right=0.8)
    lines = verdict(facts_of(expected, predicted, np.full(60, 0.8)))
    assert said(lines) == {"few"} and " to " in lines[0].split(" on ")[0]
    all_right = verdict(facts_of([0, 1, 2], [0, 1, 2], np.full(3, 0.9)))
    assert "accuracy 1 (0.292 to 1) on 3 rows" in all_right[0] and said(all_right) == {"few"}


def test_a_model_from_nothing_that_beats_the_baseline_gets_no_complaint() -> None:
    draw = np.random.default_rng(11)
    expected, predicted = plain(draw)
    weak = np.where(draw.random(400) < 0.5, expected, (expected + 2) % 4)
    given: Any = {"training": {"scratch": True}}
    assert said(verdict(facts_of(expected, predicted, np.full(400, 0.9), weak, **given))) == set()
    assert said(verdict(facts_of(expected, predicted, np.full(400, 0.9), predicted, **given))) == {
        "nothing",
        "no better",
    }


def of_numbers(model: Any, baseline: Any, truth: Any) -> Facts:
    outputs = [Outputs(truth[:, None], each[:, None], each[:, None], (each - truth) ** 2) for each in (model, baseline)]
    metrics, theirs = (values_of("regression", each) for each in outputs)
    report: Any = {
        "task": "regression", "split": "test", "asked": "test", "rows": len(truth), "metrics": metrics, "data": {},
        "intervals": intervals_of("regression", outputs[0]), "baselines": [{"name": "baseline", "metrics": theirs}],
        "max_length": 128,
    }  # fmt: skip
    return Facts(report, outputs[0], {"baseline": outputs[1]}, ["score"])


def test_numbers_are_compared_by_permutations() -> None:
    draw = np.random.default_rng(12)
    truth = draw.normal(size=300).astype(np.float32)
    near, far = (truth + draw.normal(0, size, 300).astype(np.float32) for size in (0.4, 0.8))
    assert said(verdict(of_numbers(near, far, truth))) == set()
    assert said(verdict(of_numbers(far, near, truth))) == {"worse"}
    assert verdict(of_numbers(far, near, truth))[0].startswith("rmse 0.79 (")
    assert said(verdict(of_numbers(near, near, truth))) == {"no better"}


@pytest.mark.parametrize("noise", [0.9, 0.45])
def test_numbers_are_compared_with_what_ranked_them_better_before_training(noise: float) -> None:
    """Its cosines have another range: it has correlations alone. noise: of the baseline, against 0.7 of the model."""
    draw = np.random.default_rng(14)
    truth = draw.normal(size=300).astype(np.float32)
    model, baseline, cosine = (truth + draw.normal(0, size, 300).astype(np.float32) for size in (0.7, noise, 0.3))
    found = of_numbers(model, baseline, truth)
    outputs = Outputs(truth[:, None], cosine[:, None] / 4, cosine[:, None] / 4, (cosine - truth) ** 2)
    theirs = {name: values_of("regression", outputs)[name] for name in ("pearson", "spearman")}
    found.report["baselines"].insert(0, cast(Any, {"name": "before", "metrics": theirs}))
    lines = verdict(replace(found, others={**found.others, "before": outputs}))
    assert "; the simple baseline has " in lines[0]
    now, then = (f"{pearsonr(truth, each).statistic:.3g}" for each in (model, cosine))
    assert lines[0].endswith(f"; its pearson is {now}, and the model before training has {then}"), lines[0]
    errors = [f"{np.sqrt(np.square(truth - each).mean()):.3g}" for each in (model, baseline)]
    worse = f"the simple baseline (rmse {errors[0]} and {errors[1]}), and " * (noise < 0.7)
    assert lines[1].startswith(f"the model is worse than {worse}the model before training (pearson {now} and {then}): ")
    assert said(lines) == {"worse"}


def test_of_50_equally_good_numbers_at_most_two_are_called_worse() -> None:
    told = []
    for seed in range(50):
        draw = np.random.default_rng(seed)
        truth = draw.normal(size=80).astype(np.float32)
        model, baseline = (truth + draw.standard_t(4, 80).astype(np.float32) for _ in range(2))
        told.append("worse" in said(verdict(of_numbers(model, baseline, truth))))
    assert sum(told) <= 2


def test_a_language_model_is_compared_with_itself_before_training() -> None:
    draw = np.random.default_rng(13)
    tokens = draw.integers(5, 40, 200)
    before = tokens * draw.gamma(20, 0.15, 200)
    found = {"model": before * draw.uniform(0.7, 1.0, 200), "before": before}
    columns = {
        name: RowLosses(np.arange(200), nll, tokens, 4 * tokens, np.zeros(200, bool)) for name, nll in found.items()
    }

    def facts(first: str, second: str) -> Facts:
        sums = [
            RowSums(each.nll, each.tokens, each.bytes, each.nll.sum()) for each in (columns[first], columns[second])
        ]
        metrics, theirs = (values_of("causal_lm", each) for each in sums)
        report: Any = {
            "task": "causal_lm", "split": "test", "asked": "test", "rows": 30, "tokens": 9, "metrics": metrics, "data": {},
            "intervals": intervals_of("causal_lm", sums[0]), "baselines": [{"name": "before", "metrics": theirs}],
            "max_length": 128,
        }  # fmt: skip
        return Facts(report, columns[first], {"before": columns[second]})

    assert said(verdict(facts("model", "before"))) == set()
    assert "on 200 rows of test; the model before training has" in verdict(facts("model", "before"))[0]
    assert said(verdict(facts("before", "model"))) == {"worse"}
    lines: Any = [{"tokens": 16, "ended": False}] * 3 + [{"tokens": 4, "ended": True}]
    assert said(verdict(replace(facts("model", "before"), generations=lines))) == {"endless"}


def test_minilm_does_not_know_the_script_of_amharic(shared: Path, tmp_path: Path) -> None:
    lines = (shared / "data/sentiment_amharic/test.tsv").read_text(encoding="utf-8").split("\n")[1:200]
    english = pq.read_table(shared / "data/emotion/test.parquet", columns=["text"]).slice(0, 200)["text"].to_pylist()
    shares = {}
    for name, texts in {"amharic": [line.split("\t")[0] for line in lines if "\t" in line], "english": english}.items():
        rows = {
            split: [{"text": text, "label": at % 2} for at, text in enumerate(texts)] for split in ("train", "test")
        }
        data = {"text": "text", "label": "label"}
        model = {"tokenizer": str(minilm()), "config": {"model_type": "bert"}}
        (tmp_path / name).mkdir()
        _, chunks = packed(new_bench(tmp_path / name), rows, data, model, task=TASK)
        tokenizer = read_tokenizer(chunks.path / "tokenizer")
        shares[name] = unknown_share(tokenizer, token_counts(chunks, "test", tokenizer.vocab_size))
    assert shares["amharic"] > 0.5 and shares["english"] < 0.01
    expected, predicted = plain(np.random.default_rng(14))
    told = verdict(facts_of(expected, predicted, np.full(400, 0.9), unknown=shares["amharic"]))
    assert said(told) == {"script"} and "model.source" in told[1]


REAL_ROWS = {
    "emotion": ("emotion/train.parquet", "text", "label"),
    "imdb": ("imdb/train.parquet", "text", "label"),
    "books": ("amazon_books/reviews.parquet", "review_text", "label"),
}
"""{set: file, columns of text and label}"""


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_ROWS)
def test_sound_predictions_of_real_rows_have_no_complaint(name: str, shared: Path) -> None:
    """Calibrated ones of scikit-learn's, beside those of a model of a tenth of the rows."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    file, text, label = REAL_ROWS[name]
    table = pq.read_table(shared / "data" / file, columns=[text, label]).to_pandas()
    table = table.dropna().drop_duplicates(text).sample(frac=1, random_state=0)[:2500]
    train, test = table[:-500], table[-500:]
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = make_pipeline(vectors, CalibratedClassifierCV(LinearSVC(), cv=5, ensemble=False)).fit(
        train[text], train[label]
    )
    probabilities, some = model.predict_proba(test[text]), train[: len(train) // 10]
    weak = make_pipeline(TfidfVectorizer(), LinearSVC()).fit(some[text], some[label]).predict(test[text])
    expected = test[label].to_numpy()
    facts = facts_of(expected, probabilities.argmax(1), probabilities.max(1), weak, probabilities.shape[1])
    assert said(verdict(facts)) == set(), verdict(facts)


def made_columns(task: str, skill: float, seed: int) -> Any:
    """Return what a model says of 200 rows, which it tells apart the better the higher `skill` is."""
    truth, draw, rows = np.random.default_rng(0), np.random.default_rng(seed), 200
    loss, noise = draw.random(rows), draw.normal(size=rows)
    if task == "reward":
        return Rewards(skill + noise, draw.normal(size=rows), draw.random(rows) > 0.5, loss)
    if task == "unpaired_preference":
        wanted = truth.random(rows) > 0.5
        values = skill * (2.0 * wanted - 1) + noise
        return MarkedRewards(values, wanted, values, loss, loss)
    if task == "reranker":
        asked = np.stack([truth.random(rows) > 0.7, truth.integers(0, 40, rows), np.zeros(rows)], 1).astype(np.float32)
        values = skill * asked[:, 0] + noise
        return Outputs(asked, values[:, None], values[:, None], loss)
    if task == "multi_label":
        expected = (truth.random((rows, 4)) > 0.7).astype(np.float32)
        decided = np.where(draw.random((rows, 4)) < 0.6 + 0.15 * skill, expected, 1 - expected)
        return Outputs(expected, decided, decided, loss)
    expected = truth.integers(0, 3, (rows, 6)).astype(np.int32)
    decided = np.where(draw.random((rows, 6)) < 0.6 + 0.15 * skill, expected, 0)
    return Outputs(expected, np.ones((rows, 6), np.float32), decided, loss)


def test_rare_labels_are_told_where_the_usual_metric_hides_them() -> None:
    """As of 2,000 rows of GoEmotions: micro F1 above the simple baseline, macro F1 below. The advice is none that fails."""
    draw, rows = np.random.default_rng(0), 400
    expected = np.zeros((rows, 6), np.float32)
    expected[np.arange(rows), draw.choice(6, rows, p=[0.4, 0.4, 0.05, 0.05, 0.05, 0.05])] = 1
    known = np.where(expected[:, :2] > 0.5, 1.0, draw.random((rows, 2)) < 0.05).astype(np.float32)
    usual = np.concatenate([known, np.zeros((rows, 4), np.float32)], axis=1)
    often = np.where(draw.random((rows, 6)) < 0.75, expected, draw.random((rows, 6)) < 0.3).astype(np.float32)
    loss = np.ones(rows)
    model, baseline = (Outputs(expected, decided, decided, loss) for decided in (usual, often))
    report: Any = {
        "task": "multi_label", "split": "test", "asked": "test", "rows": rows, "metrics": values_of("multi_label", model),
        "data": {}, "intervals": intervals_of("multi_label", model), "max_length": 128,
        "baselines": [{"name": "baseline", "metrics": values_of("multi_label", baseline)}],
    }  # fmt: skip
    lines = verdict(Facts(report, model, {"baseline": baseline}, [f"label {number}" for number in range(6)]))
    assert said(lines) == {"rare", "never"}
    assert "promote.metric=f1_macro" in lines[1] and "class_weights" not in "".join(lines)
    swapped: Any = report | {"metrics": values_of("multi_label", baseline)}
    swapped["baselines"] = [{"name": "baseline", "metrics": report["metrics"]}]
    assert "rare" not in said(verdict(Facts(swapped, baseline, {"baseline": model}, ["a", "b", "c", "d", "e", "f"])))


def test_rare_classes_are_told_where_accuracy_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of 1,000 diagnoses in 21 chapters: as accurate as the simple baseline, and macro F1 0.39 instead of 0.55."""
    draw, rows = np.random.default_rng(0), 400
    expected = draw.choice(6, rows, p=[0.4, 0.4, 0.05, 0.05, 0.05, 0.05])
    usual = np.where(expected < 2, expected, 0)
    often = np.where(draw.random(rows) < 0.8, expected, (expected + draw.integers(1, 6, rows)) % 6)
    lines = verdict(facts_of(expected, usual, np.full(rows, 0.8), often))
    assert said(lines) == {"rare", "never", "no better"}
    assert "in which each class counts alike" in lines[1] and "train.class_weights=balanced" in lines[1]
    weighted = {"settings": {"class_weights": "balanced"}}
    had = "".join(verdict(facts_of(expected, usual, np.full(rows, 0.8), often, training=weighted)))
    assert "in which each class counts alike" in had and "class_weights" not in had
    assert "rare" not in said(verdict(facts_of(expected, often, np.full(rows, 0.8), usual)))
    monkeypatch.setattr(comparison, "MOST_CELLS", 6 * rows - 1)
    assert "rare" not in said(verdict(facts_of(expected, usual, np.full(rows, 0.8), often))), "it would take long"


def test_better_on_rare_classes_alone_is_said() -> None:
    """One row in 20 is rare: the model finds half of them for as many false alarms, the baseline none."""
    expected = np.r_[np.ones(40, int), np.zeros(760, int)]
    halves = np.r_[np.ones(20, int), np.zeros(20, int), np.ones(20, int), np.zeros(740, int)]
    (line,) = (
        line for line in verdict(facts_of(expected, halves, np.full(800, 0.95), np.zeros(800, int))) if "show" in line
    )
    assert line.endswith("but it is where each class counts alike (f1_macro 0.737 and 0.487)")
    lines = verdict(facts_of(expected, np.zeros(800, int), np.full(800, 0.95), np.zeros(800, int)))
    assert "counts alike" not in "".join(lines)


def test_weights_that_cost_accuracy_are_named() -> None:
    """One row in 20 is rare: the weighted model finds them and gives false alarms, which the baseline never does."""
    expected = np.r_[np.ones(40, int), np.zeros(760, int)]
    weighted = np.r_[np.ones(120, int), np.zeros(680, int)]
    training: Meta = {"settings": {"class_weights": "balanced"}}
    facts = facts_of(expected, weighted, np.full(800, 0.9), np.zeros(800, int), training=training)
    (line,) = (line for line in verdict(facts) if "worse than" in line)
    assert "each row does, train.class_weights=null may help" in line and "more updates" not in line
    alike = facts_of(expected, weighted, np.full(800, 0.9), np.zeros(800, int))
    assert "class_weights=null" not in "".join(verdict(alike))


@pytest.mark.parametrize("task", ["reward", "unpaired_preference", "reranker", "multi_label", "token_classification"])
def test_each_task_is_compared_on_its_own_metric(task: str) -> None:
    good, bad = made_columns(task, 2.0, 1), made_columns(task, 0.0, 2)
    metrics = {id(each): values_of(task, each) for each in (good, bad)}

    def causes(model: Any, baseline: Any) -> set[str]:
        report: Any = {
            "task": task, "split": "test", "asked": "test", "rows": 200, "metrics": metrics[id(model)], "data": {},
            "intervals": intervals_of(task, model), "max_length": 128,
            "baselines": [{"name": "baseline", "metrics": metrics[id(baseline)]}],
        }  # fmt: skip
        return said(verdict(Facts(report, model, {"baseline": baseline}, ["O", "B-a", "I-a", "B-b"])))

    assert causes(good, bad) == set() and causes(bad, good) == {"worse"}
