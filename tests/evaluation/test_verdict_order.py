"""Which of several true sentences a verdict leaves out."""

from __future__ import annotations

import numpy as np

from tests.evaluation.test_verdicts import facts_of, said
from trnflow.tasks.evaluation.verdicts.verdict import verdict


def test_that_rows_are_few_is_not_said_beside_what_they_do_not_show() -> None:
    expected = np.arange(60) % 3
    model, baseline = (np.where(np.arange(60) % 5 == at, (expected + 1) % 3, expected) for at in (0, 1))
    assert said(verdict(facts_of(expected, model, np.full(60, 0.8), baseline))) == {"no better"}
