"""Checks of data measure what docs/settings.md says: on small tables whose answers are counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from trnflow.tasks.errors import ConfigError
from trnflow.tasks.promotion.data_checks import LoadedRows, Measured, measure
from trnflow.tasks.promotion.settings import CheckConfig

LABELS = ["neg", "pos"]


def rows(
    folder: Path, train: list[Any], test: list[Any] | None = None, *, labels: list[str] | None = LABELS
) -> LoadedRows:
    """Rows as load_data writes them. train, test: (text, label id) of each row."""
    folder.mkdir()
    splits = {"train": train, "test": test or train[:1]}
    for name, some in splits.items():
        texts, ids = zip(*some, strict=True)
        table = pa.table({"text": texts, "origin": [text[:1] for text in texts], "label": pa.array(ids, pa.int64())})
        pq.write_table(table, folder / f"{name}.parquet")
    counted = {name: [label for _, label in some] for name, some in splits.items()}
    counts = {name: {one: ids.count(n) for n, one in enumerate(labels or ())} for name, ids in counted.items()}
    meta = {"splits": {name: len(some) for name, some in splits.items()}, "labels": labels, "text": ["text"]}
    return LoadedRows(folder, {**meta, "columns": ["text", "origin", "label"], "label_counts": counts})


def found(now: LoadedRows, before: LoadedRows | None = None, raw: LoadedRows | None = None, **check: Any) -> Measured:
    return measure(CheckConfig(**check), now, raw or now, before)


def test_rows_are_lost_and_more_rows_are_no_loss(tmp_path: Path) -> None:
    four, three = rows(tmp_path / "four", [("a", 0)] * 4), rows(tmp_path / "three", [("a", 0)] * 3)
    assert found(three, four, what="rows") == (0.25, "3 training rows, where the champion had 4", False)
    assert found(four, three, what="rows").value == 0


def test_the_share_of_a_class_also_of_a_new_one_and_of_another_column(tmp_path: Path) -> None:
    before = rows(tmp_path / "before", [("a", 0), ("b", 0), ("c", 1), ("d", 1)])
    now = rows(tmp_path / "now", [("a", 0), ("b", 0), ("c", 0), ("x", 2)], labels=["neg", "pos", "new"])
    assert found(now, before, what="label_share").value == pytest.approx(0.5)
    assert "pos is 0.0%" in found(now, before, what="label_share").why
    other = found(now, before, what="label_share", column="origin")
    assert other.value == pytest.approx(0.25) and "d is 0.0%" in other.why
    unlabelled = rows(tmp_path / "unlabelled", [("a", 0)], labels=None)
    assert found(unlabelled, before, what="label_share") == (None, "the data has no labels", False)


def test_the_longest_text_counts_characters_and_names_its_row(tmp_path: Path) -> None:
    now = rows(tmp_path / "now", [("ab", 0), ("é" * 7, 1)], [("abc", 0), ("\N{PARTY POPPER}" * 9, 1)])
    assert found(now, what="longest") == (9, "row 2 of test has 9 characters", False)
    assert found(now, what="longest", column="origin").value == 1


def test_leakage_is_of_test_rows_and_of_the_data_before_frozen_rows_are_dropped(tmp_path: Path) -> None:
    raw = rows(tmp_path / "raw", [("a", 0), ("b", 0), ("c", 0)], [("b", 0), ("b", 1), ("x", 0), ("y", 0)])
    now = rows(tmp_path / "now", [("a", 0), ("c", 0)], [("x", 0), ("y", 0)])
    assert found(now, raw=raw, what="leakage") == (0.5, "2 of 4 test rows are also in train", False)
    assert found(now, what="leakage").value == 0


def test_lengths_by_the_statistic_and_few_rows_by_chance(tmp_path: Path) -> None:
    short = rows(tmp_path / "short", [("a" * (1 + n % 10), 0) for n in range(200)])
    same = rows(tmp_path / "same", [("b" * (1 + n % 10), 0) for n in range(400)])
    long = rows(tmp_path / "long", [("a" * (6 + n % 10), 0) for n in range(200)])
    assert found(same, short, what="lengths").value == 0
    half = found(long, short, what="lengths")
    assert half.value == pytest.approx(0.5) and not half.by_chance and "the median is 10 characters" in half.why
    assert found(rows(tmp_path / "few", [("aa", 0), ("a" * 9, 0)]), short, what="lengths").by_chance


def test_without_a_champion_only_what_compares_can_not_be_applied(tmp_path: Path) -> None:
    now = rows(tmp_path / "now", [("a", 0)])
    values = {what: found(now, what=what).value for what in ("rows", "label_share", "lengths", "longest", "leakage")}
    assert values == {"rows": None, "label_share": None, "lengths": None, "longest": 1, "leakage": 1}


@pytest.mark.parametrize("before", [True, False])
def test_a_column_that_is_not_there_or_no_text_is_an_error_also_without_a_champion(
    tmp_path: Path, before: bool
) -> None:
    now = rows(tmp_path / "now", [("a", 0)])
    champion = now if before else None
    for what in ("label_share", "lengths", "longest"):
        with pytest.raises(ConfigError, match=f"checks: {what} names the column topic, which the data does not have"):
            found(now, champion, what=what, column="topic")
    with pytest.raises(ConfigError, match="the column label is int64"):
        found(now, champion, what="longest", column="label")


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ({"what": "rows", "column": "text"}, "`column` is for label_share, longest, lengths, not for rows"),
        ({"what": "lengths", "limit": 3}, "`limit` of lengths is a share, at most 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(check: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        CheckConfig(**check)
    assert CheckConfig(what="longest", limit=5000).most == 5000 and CheckConfig(what="rows").most == 0.1
