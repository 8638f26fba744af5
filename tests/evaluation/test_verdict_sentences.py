"""What single sentences of a verdict name, on a few made rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer
from trnflow.tasks.evaluation.columns import ClassPredictions
from trnflow.tasks.evaluation.verdicts import comparison
from trnflow.tasks.evaluation.verdicts.classes import never_predicted
from trnflow.tasks.evaluation.verdicts.comparison import Compared, no_better_than_a_baseline, worse_on_rare_labels
from trnflow.tasks.evaluation.verdicts.confidence import confidence
from trnflow.tasks.evaluation.verdicts.facts import Facts, Known
from trnflow.tasks.evaluation.verdicts.rows import endless_texts, rows_in_train
from trnflow.tasks.evaluation.verdicts.script import unknown_share
from trnflow.tasks.evaluation.verdicts.training import from_nothing, risen_loss, still_falling


def facts_of(expected: list[int], predicted: list[int], **more: Any) -> Facts:
    rows = len(expected)
    columns = ClassPredictions(np.array(expected), np.array(predicted), np.zeros((rows, 3), np.float32), np.zeros(rows))
    accuracy = float(np.equal(expected, predicted).mean())
    report: Any = {"task": "classification", "split": "test", "metrics": {"accuracy": accuracy}}
    return Facts(report, columns, labels=["low", "mid", "high"], rows=np.arange(rows), **more)


def test_the_classes_that_train_lacks_are_named() -> None:
    few = facts_of([0, 1] * 9 + [2] * 9, [0, 1] * 9 + [0] * 9, taught=np.array([9, 9, 0]))
    told = never_predicted(few)
    assert (
        told is not None and "never predicted, of 3 classes: high (9 rows of test); train has no rows of high; " in told
    )
    known = never_predicted(facts_of([0, 1] * 9 + [2] * 9, [0, 1] * 9 + [0] * 9, taught=np.array([9, 9, 9])))
    assert known is not None and "train has no rows" not in known


@pytest.mark.parametrize(("missed", "told"), [(6, False), (7, True)])
def test_seven_rows_of_a_class_that_is_never_predicted_are_no_chance(missed: int, told: bool) -> None:
    facts = facts_of([0, 1] * 9 + [2] * missed, [0, 1] * 9 + [0] * missed)
    assert (never_predicted(facts) is not None) is told


@pytest.mark.parametrize(
    ("rows", "sure", "right", "told"),
    [(10, 0.9, 0.7, False), (5000, 0.95, 0.9, False), (1000, 0.9, 0.7, True), (1000, 0.5, 0.7, True)],
)
def test_confidence_is_told_where_it_is_far_from_accuracy_and_chance_does_not_explain_it(
    rows: int, sure: float, right: float, told: bool
) -> None:
    bins = [{"rows": rows, "confidence": sure, "accuracy": right}]
    facts: Any = SimpleNamespace(report={"calibration": bins}, curves=[], training={}, temperature=None)
    assert (confidence(facts) is not None) is told


@pytest.mark.parametrize(("best", "told"), [({}, True), ({"best_step": 100}, True), ({"best_step": 60}, False)])
def test_a_loss_that_falls_after_the_step_that_is_kept_asks_for_no_more_updates(
    best: dict[str, int], told: bool
) -> None:
    rows = [{"step": at, "loss": 2 - at / 100, "learning_rate": 1.0} for at in range(1, 101)]
    facts: Any = SimpleNamespace(curves=rows, training={"steps": 100, **best})
    assert (still_falling(facts) is not None) is told


def test_rows_of_train_are_compared_with_all_others_alone() -> None:
    in_train = np.arange(10) < 4
    facts = facts_of([0] * 10, [0] * 4 + [0, 0, 0, 1, 1, 1], known=Known(in_train, np.zeros(10, np.bool_)))
    told = rows_in_train(facts)
    assert told is not None and "of 10 rows of test 4 have the text" in told
    assert "accuracy is 1 on them, 0.5 on the others" in told


@pytest.mark.parametrize(("equal", "rows", "told"), [(2, 10, False), (3, 10, True), (3, 100, False), (5, 100, True)])
def test_rows_of_train_are_told_where_they_are_three_and_a_twentieth(equal: int, rows: int, told: bool) -> None:
    known = Known(np.arange(rows) < equal, np.zeros(rows, np.bool_))
    assert (rows_in_train(facts_of([0] * rows, [0] * rows, known=known)) is not None) is told


def beside(worse: float, better: float, value: float = 0.8) -> Compared:
    return Compared("baseline", "accuracy", value, 0.8, worse, better)


def test_a_model_from_nothing_is_told_unless_it_is_better_than_each_baseline() -> None:
    facts: Any = SimpleNamespace(training={"scratch": True})
    assert from_nothing(facts, [beside(0.9, 0.01), beside(0.5, 0.5)]) is not None
    assert from_nothing(facts, []) is not None and from_nothing(facts, [beside(0.9, 0.01)]) is None


def test_rare_labels_are_told_unless_a_baseline_is_better_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_on_rare_labels", lambda facts, worse: beside(0.0, 1.0))
    facts: Any = SimpleNamespace(kind=SimpleNamespace(one_class=True), is_balanced=False)
    assert worse_on_rare_labels(facts, []) is not None and worse_on_rare_labels(facts, [beside(1.0, 0.0)]) is not None
    assert worse_on_rare_labels(facts, [beside(1.0, 0.0), beside(0.0, 1.0)]) is None


def test_nothing_is_better_than_all_right() -> None:
    facts = facts_of([0] * 100, [0] * 100)
    assert no_better_than_a_baseline(facts, [beside(1.0, 1.0, value=1.0)], "") is None
    assert no_better_than_a_baseline(facts, [beside(0.5, 0.5, value=0.9)], "") is not None


def test_a_loss_that_was_lowest_before_training_has_not_risen_by_it() -> None:
    def risen(*losses: float) -> Any:
        facts: Any = SimpleNamespace(
            curves=[{"step": at, "eval_loss": loss} for at, loss in enumerate(losses)], training={}
        )
        return risen_loss(facts)

    assert risen(1.0, 1.5, 2.0) is None and risen(1.5, 1.0, 2.0) == (1, 1.0, 2.0)


def test_the_unknown_token_counts_though_it_is_a_special_one() -> None:
    names = ["[UNK]", "[CLS]", "[PAD]", "a", "b"]
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, "[UNK]"))
    tokenizer.add_special_tokens(names[:3])
    fast = FastTokenizer(tokenizer, {"unk_token": "[UNK]", "cls_token": "[CLS]", "pad_token": "[PAD]"}, "toy")
    assert unknown_share(fast, np.array([6, 50, 50, 10, 8])) == 0.25


@pytest.mark.parametrize(("ended", "told"), [(2, False), (1, True), (4, False)])
def test_texts_that_do_not_end_are_told_where_they_are_more_than_half(ended: int, told: bool) -> None:
    texts = [{"tokens": 10 + at, "ended": at < ended} for at in range(4)]
    facts: Any = SimpleNamespace(generations=texts, packed={})
    note = endless_texts(facts)
    assert (note is not None and f"{4 - ended} of 4 generated texts did not end within 13 tokens" in note) is told
