"""Choose what is said."""

from __future__ import annotations

from collections.abc import Iterator

from trnflow.tasks.evaluation.verdicts.classes import labels_that_differ, never_predicted, one_class
from trnflow.tasks.evaluation.verdicts.comparison import (
    Compared,
    compared,
    no_better_than_a_baseline,
    worse_on_rare_labels,
    worse_than_a_baseline,
)
from trnflow.tasks.evaluation.verdicts.confidence import confidence
from trnflow.tasks.evaluation.verdicts.facts import Facts
from trnflow.tasks.evaluation.verdicts.headline import few_rows, headline
from trnflow.tasks.evaluation.verdicts.rows import cut_rows, endless_texts, left_out_rows, rows_in_train
from trnflow.tasks.evaluation.verdicts.script import unknown_script
from trnflow.tasks.evaluation.verdicts.training import advice, from_nothing, over_trained, still_falling

MOST = 4
"""Lines, the first one included."""


def verdict(facts: Facts) -> list[str]:
    """Return the first line and up to three causes, each with the setting that helps."""
    beside = compared(facts)
    causes = dict.fromkeys(cause for cause in _causes(facts, beside) if cause is not None)
    return [headline(facts, beside), *[*causes][: MOST - 1]]


def _causes(facts: Facts, beside: list[Compared]) -> Iterator[str | None]:
    """Yield causes, that which explains most first."""
    helps = advice(facts)
    worse = worse_than_a_baseline(facts, beside, helps)
    yield labels_that_differ(facts)
    yield one_class(facts)
    yield unknown_script(facts)
    yield endless_texts(facts)
    yield worse
    yield worse_on_rare_labels(facts, beside)
    yield still_falling(facts)
    yield never_predicted(facts)
    yield cut_rows(facts)
    yield over_trained(facts)
    yield rows_in_train(facts)
    yield from_nothing(facts, beside)
    same = None if worse else no_better_than_a_baseline(facts, beside, helps)
    yield same
    yield left_out_rows(facts)
    yield confidence(facts)
    yield None if same else few_rows(facts, beside)
