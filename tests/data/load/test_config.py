"""What the settings of `load_data` come to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trnflow.tasks.data.load.config import DataConfig
from trnflow.tasks.data.load.hub_rows import _text_files

TEXTS = ("question", "passage")


@pytest.mark.parametrize(
    ("named", "queries", "by"),
    [(None, True, "question"), ("topic", True, "topic"), ("topic", False, "topic"), (None, False, None)],
)
def test_queries_stay_together_unless_the_user_says_what_does(named: str | None, queries: bool, by: str | None) -> None:
    reading = DataConfig(source="rows", text=TEXTS, split_by=named).reading("passage", queries=queries)
    assert (reading.split_by, reading.texts) == (by, TEXTS)
    assert DataConfig(source="rows", text="question").reading("passage", queries=True).texts == TEXTS


@pytest.mark.parametrize(
    ("settings", "found"), [({}, {"train": ["a.csv"]}), ({"sep": ";"}, None), ({"skiprows": 1}, None)]
)
def test_csv_with_settings_of_its_repository_is_left_to_datasets(settings: dict[str, Any], found: Any) -> None:
    from datasets.data_files import DataFilesDict
    from datasets.packaged_modules.csv.csv import CsvConfig

    config = CsvConfig(data_files=DataFilesDict({"train": ["hf://datasets/me/set@abc/a.csv"]}), **settings)
    assert _text_files(SimpleNamespace(config=config), "abc") == found
