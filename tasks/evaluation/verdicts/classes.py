"""Classes that are never predicted, and rows of one class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnflow.tasks.evaluation.scores import f1_macro
from trnflow.tasks.evaluation.verdicts.facts import Facts, a_few, figure, percent
from trnflow.tasks.kinds.kind import IGNORED

if TYPE_CHECKING:
    from trnflow.tasks.system.arrays import Ints

NEARLY_ALL = 0.95
"""The share of rows from which one class has nearly all."""
MISSED = 7
"""Rows of classes that are never predicted, at least: a model that finds half of such rows would miss seven with a
probability below 0.01."""
FEWEST = 3
"""Labels of train, at least, that are said to differ in each row."""
BALANCED = "train.class_weights=balanced"
"""Of tasks whose loss has weights, those with one class a row, that were trained without."""


def labels_that_differ(facts: Facts) -> str | None:
    """Say that no label stands at two rows of train."""
    if facts.taught is None or facts.taught.max(initial=0) != 1 or (facts.taught > 0).sum() < FEWEST:
        return None
    rows = int(facts.taught.sum())
    return (
        f"each of the {rows:,} rows of train has a label of its own, of which one row teaches little: is it a number or an id? "
        "name a column whose values repeat (data.label)"
    )


def one_class(facts: Facts) -> str | None:
    counts = _counts(facts)
    if counts is None or not facts.kind.one_class:
        return None
    (true, predicted), rows = counts, facts.count
    largest = int(true.argmax())
    if true[largest] == rows:
        return (
            f"all rows of {facts.split} have the label {facts.labels[largest]}: accuracy, F1, MCC and AUC tell nothing; evaluate "
            "on rows of other labels, too (data.split)"
        )
    if (predicted > 0).sum() == 1:
        only = facts.labels[int(predicted.argmax())]
        return f"the model predicts {only} for every row: {_helps(facts, 'other classes')}"
    if true[largest] >= NEARLY_ALL * rows:
        weights = "" if facts.is_balanced else f"{BALANCED} or "
        return (
            f"{percent(true[largest] / rows)} of the rows of {facts.split} have the label {facts.labels[largest]}, so saying it "
            f"always has accuracy {figure(true[largest] / rows)}: look at {f1_macro.name}, "
            f"{figure(facts.report['metrics'][f1_macro.name])}; {weights}more rows of other labels help"
        )
    return None


def never_predicted(facts: Facts) -> str | None:
    counts = _counts(facts)
    if counts is None:
        return None
    true, predicted = counts
    missed = ((true > 0) & (predicted == 0)).nonzero()[0]
    rows = int(true[missed].sum())
    if rows < MISSED or (facts.kind.one_class and (predicted > 0).sum() == 1):  # `one_class` says that
        return None
    names = [str(facts.labels[at]) for at in missed[(-true[missed]).argsort(kind="stable")]]
    what = "rows" if not facts.kind.per_position else "words"
    untaught = [] if facts.taught is None else [str(facts.labels[at]) for at in missed if not facts.taught[at]]
    none = f"train has no rows of {a_few(untaught)}; " if untaught else ""
    where = f"{rows:,} {what} of {facts.split}"
    return f"never predicted, of {(true > 0).sum():,} classes: {a_few(names)} ({where}); {none}{_helps(facts, 'them')}"


def _helps(facts: Facts, which: str) -> str:
    return f"{'' if facts.is_balanced else f'{BALANCED}, '}more updates or more rows of {which} may help"


def _counts(facts: Facts) -> tuple[Ints, Ints] | None:
    """Return how often each output is true and predicted; None of tasks without classes."""
    import numpy as np

    kind, columns, outputs = facts.kind, facts.columns, len(facts.labels)
    if kind.one_class:
        pairs = (columns.expected, columns.predicted)
    elif kind.per_position and kind.reads_targets:
        there = columns.expected != IGNORED
        pairs = (columns.expected[there], columns.decided[there])
    elif kind.name == "multi_label":
        return (columns.expected > 0.5).sum(0), (columns.decided > 0.5).sum(0)
    else:
        return None
    true, predicted = (np.bincount(each, minlength=outputs) for each in pairs)
    return true, predicted
