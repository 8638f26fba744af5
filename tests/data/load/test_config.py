"""What the settings of `load_data` come to."""

from __future__ import annotations

import pytest

from trnflow.tasks.data.load.config import DataConfig

TEXTS = ("question", "passage")


@pytest.mark.parametrize(
    ("named", "queries", "by"),
    [(None, True, "question"), ("topic", True, "topic"), ("topic", False, "topic"), (None, False, None)],
)
def test_queries_stay_together_unless_the_user_says_what_does(named: str | None, queries: bool, by: str | None) -> None:
    reading = DataConfig(source="rows", text=TEXTS, split_by=named).reading("passage", queries=queries)
    assert (reading.split_by, reading.texts) == (by, TEXTS)
    assert DataConfig(source="rows", text="question").reading("passage", queries=True).texts == TEXTS
