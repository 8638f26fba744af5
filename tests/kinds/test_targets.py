"""What rows of `multi_label` and `regression` may hold, and what is refused with row and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.kinds.written_lists import any_list


def targets(rows: list[Any], names: list[str] | None = None, **settings: Any) -> tuple[list[str] | None, list[Any]]:
    """(the names of the outputs, the target of each row)."""
    config = FormatConfig(**settings)
    kind, nested = FORMATS[config.task], ["tags"]
    given = [row if isinstance(row, dict) else {config.target: row} for row in rows]
    labels = names or kind.labels_of(config, lambda: given, nested)
    make = kind.target_of(config, labels or [], nested)
    return labels, [make(row, f"row {number}") for number, row in enumerate(given, 1)]


def test_labels_are_lists_or_texts_with_commas() -> None:
    lists = [{"tags": json.dumps(value)} for value in (["b", "a"], [], ["c"])]
    assert targets(lists, task="multi_label", target="tags") == (["a", "b", "c"], [[1, 1, 0], [0, 0, 0], [0, 0, 1]])
    assert targets(["b, a", None, "c"], task="multi_label")[1] == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert targets(["10,2", "2"], task="multi_label") == (["2", "10"], [[1, 1], [1, 0]])
    assert targets(["1", "0,1"], task="multi_label", labels=["no", "yes"]) == (["no", "yes"], [[0, 1], [1, 1]])


@pytest.mark.parametrize(
    "cells",
    [
        ["['a', 'b']", "['c']", "[]"],
        ['["a", "b"]', '["c"]', "[]"],
        ["['a' 'b']", "['c']", "[]"],
        ["[a, b]", "[c]", "[]"],
        ["{a,b}", "{c}", "{}"],
        ["{'a', 'b'}", "('c',)", "()"],
        ["['a', 'b', nan]", "['c', None]", "nan"],
        ["a;b", "c", ""],
        ["a | b", "c", None],
    ],
)
def test_a_cell_of_several_labels_is_read_as_csv_files_have_it(cells: list[Any]) -> None:
    """pandas writes lists into CSV as Python's texts, numpy without commas, Spark without quotes, PostgreSQL in braces; films'
    genres have `|` between them."""
    assert targets(cells, task="multi_label") == (["a", "b", "c"], [[1, 1, 0], [0, 0, 1], [0, 0, 0]])


def test_numbers_of_labels_are_read_as_numpy_writes_them() -> None:
    wanted = (["1", "2", "10"], [[1, 1, 0], [0, 0, 1], [0, 0, 0]])
    assert targets(["[1 2]", "[10]", "[]"], task="multi_label") == wanted
    assert targets(["[ 1\n  2]", "[10]", "[]"], task="multi_label") == wanted


def test_no_value_of_a_list_is_a_label() -> None:
    lists = [{"tags": json.dumps(value)} for value in (["a", None], ["b", "", " "], [None])]
    assert targets(lists, task="multi_label", target="tags") == (["a", "b"], [[1, 0], [0, 1], [0, 0]])


@pytest.mark.parametrize("write", [json.dumps, str, lambda bits: f"[{' '.join(map(str, bits))}]"])
@pytest.mark.parametrize("bits", [[[0, 1, 0], [1, 1, 0]], [[0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]])
def test_a_list_of_0_and_1_for_all_labels_is_no_list_of_labels(bits: list[list[float]], write: Any) -> None:
    with pytest.raises(DataError, match=r"train row 1: .* is a list of 3 numbers, each 0 or 1"):
        targets([*map(write, bits)], task="multi_label")
    named = targets(["[0]", "[0, 1]", "[1]"], task="multi_label")
    assert named == (["0", "1"], [[1, 0], [1, 1], [0, 1]]), "two labels of these names"


def test_labels_may_hold_what_stands_between_other_labels() -> None:
    """Names that are given are found whole; else the column has one sign between its labels, commas first."""
    named = ["Art; Music", "Film", "Sales | Ops"]
    cells = ["Sales | Ops", "Art; Music, Film", "Film"]
    wanted = (named, [[0, 0, 1], [1, 1, 0], [0, 1, 0]])
    assert targets(cells, task="multi_label", labels=named) == targets(cells, task="multi_label") == wanted


def test_labels_are_columns_of_0_and_1() -> None:
    rows = [{"a": 0, "b": True}, {"a": "1", "b": 1.0}, {"a": "False", "b": False}]
    assert targets(rows, task="multi_label", target=["a", "b"]) == (["a", "b"], [[0, 1], [1, 1], [0, 0]])
    with pytest.raises(DataError, match="row 1: b is 2, not 0 or 1"):
        targets([{"a": 0, "b": 2}], task="multi_label", target=["a", "b"])


def test_numbers() -> None:
    assert targets([1, "2.5", 3.5], task="regression", target="y") == (["y"], [[1.0], [2.5], [3.5]])
    rows = [{"a": 1, "b": 2}, {"a": 1, "b": 3}]
    assert targets(rows, task="regression", target=["a", "b"]) == (["a", "b"], [[1, 2], [1, 3]])


def remarks(numbers: np.ndarray, train: np.ndarray) -> list[str]:
    return [*FORMATS["regression"].remarks(numbers.reshape(len(numbers), -1).astype(np.float32), train[:, None])]


def test_numbers_of_another_scale_than_those_of_train_are_remarked(shared: Path) -> None:
    """Real scores of pairs, 0 to 5: as they are, as shares of 5, as percents, and 273 higher."""
    lines = ((shared / f"data/stsbenchmark/sts-{name}.csv").read_text().splitlines() for name in ("train", "test"))
    train, test = (np.array([line.split("\t")[4] for line in some], np.float32) for some in lines)
    assert remarks(test, train) == remarks(test[:40], train) == remarks(np.zeros(100), train) == []
    low, high = np.quantile(test / 5, (0.25, 0.75))
    assert f"lie from {low:.4g} to {high:.4g}, those of train from" in remarks(test / 5, train)[0]
    assert remarks(test * 20, train) and remarks(test + 5, train) and not remarks(test + 0.5, train)
    assert remarks(test[:29] / 50, train) == remarks(test, train[:29] / 50) == [], "so few rows tell nothing"
    assert remarks(test[:30] / 50, train) and remarks(test, train[:30] / 50)


def test_numbers_that_stand_for_a_missing_one_are_remarked(shared: Path) -> None:
    lines = (shared / "data/stsbenchmark/sts-train.csv").read_text().splitlines()
    scores = np.array([line.split("\t")[4] for line in lines], np.float32)
    for mark in (-999, 99999, -99):
        (told,) = remarks(np.append(scores, [mark] * 3), scores)
        assert told.startswith(f"3 of {len(scores) + 3} rows have {mark}, far from all others")
    sound = [[mark] * 3 for mark in (5.5, -1, 0)] + [[999] * 2]
    assert not [told for more in sound for told in remarks(np.append(scores, more), scores)]
    years, prices = np.arange(1950, 2000).repeat(4), np.append(np.geomspace(1, 2000, 300), [999, 99, 99, 99, 999, 999])
    assert not [told for numbers in (years, prices) for told in remarks(numbers, numbers.astype(np.float32))]


@pytest.mark.parametrize("seed", range(20))
def test_few_rows_of_long_tails_are_no_other_scale(seed: int) -> None:
    """Prices: a hundred rows of which the largest is a thousand times the smallest."""
    draw = np.random.default_rng(seed)
    assert remarks(draw.lognormal(3, 1.2, 100), draw.lognormal(3, 1.2, 5000).astype(np.float32)) == []


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (
            ["a,b", "c"],
            {"task": "multi_label", "names": ["a", "b"]},
            "row 2: the label 'c' in label is none of train's",
        ),
        (["a", "a"], {"task": "multi_label"}, "the rows of train have 1 labels in label"),
        (["a,b", "b, a"], {"task": "multi_label"}, "all rows of train have the same labels in label, a, b"),
        ([1, float("nan")], {"task": "regression"}, "train row 2: label is nan, no finite number"),
        ([1, "-inf"], {"task": "regression"}, "train row 2: label is '-inf', no finite number"),
        ([1, None], {"task": "regression"}, "train row 2: label is missing"),
        ([1, "good"], {"task": "regression"}, "train row 2: label is 'good', no finite number"),
        ([1, True], {"task": "regression"}, "train row 2: label is True, no finite number"),
        ([2, 2.0], {"task": "regression"}, "all rows of train have the same label"),
        ([{"x": 1}], {"task": "regression"}, "train row 1: there is no column label"),
    ],
)
def test_a_target_that_is_none_is_named(rows: list[Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        targets(rows, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "classification", "target": "y"}, "`target` is for multi_label, regression"),
        ({"task": "regression", "labels": ["a", "b"]}, "`labels` is for multi_label"),
        ({"task": "multi_label", "target": ["a"]}, "two labels or more"),
        (
            {"task": "multi_label", "target": ["a", "b"], "labels": ["a", "b"]},
            "`labels` names the labels of one column",
        ),
    ],
)
def test_settings_that_do_not_fit_the_task(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FormatConfig(**settings)


def test_a_class_label_and_a_missing_column_are_refused_before_rows_are_read() -> None:
    config, meta = FormatConfig(task="regression", target="y"), {"labels": None, "columns": ["text", "x"]}
    with pytest.raises(ConfigError, match="the rows have no column y"):
        FORMATS["regression"].check_rows(config, meta)
    with pytest.raises(ConfigError, match=r"data\.label makes one class of each row, and format\.task is regression"):
        FORMATS["regression"].check_rows(config, {**meta, "labels": ["a", "b"]})


def test_numbers_of_two_models_are_the_same_to_a_thousandth() -> None:
    import torch

    first, second = (
        torch.tensor([[1.0, 0.0], [1.0, 0.01], [2000.0, 0.0]]),
        torch.tensor([[1.0005, 0.0], [1.0, 0.0], [2001.0, 0.0]]),
    )
    assert FORMATS["regression"].agree(first, second).tolist() == [True, False, True]


def test_the_task_s_own_metrics_may_promote_and_those_at_half_may_not() -> None:
    metrics = FORMATS["multi_label"].metrics
    assert [one.name for one in metrics if one.may_promote] == ["f1_micro", "f1_macro", "accuracy", "loss"]
    assert [one.name for one in metrics if one.is_default] == ["f1_micro"]


@pytest.mark.parametrize(
    ("text", "wanted"), [("{}", []), ("[]", []), ("()", []), ("{'b', 'a'}", ["a", "b"]), ('{"a": 1}', None)]
)
def test_an_empty_set_in_a_cell_is_an_empty_list_and_an_object_is_none(text: str, wanted: list[str] | None) -> None:
    assert any_list(text) == wanted


@pytest.mark.parametrize(
    ("decision", "labels"), [({"threshold": 0.25}, ["a", "b"]), ({}, ["a"]), ({"threshold": 0.75}, [])]
)
def test_a_text_has_the_labels_that_reach_the_threshold(decision: dict[str, float], labels: list[str]) -> None:
    answer = FORMATS["multi_label"].answer([0.5, 0.25, 0.125], ["a", "b", "c"], decision)
    assert answer == {"labels": labels, "probabilities": {"a": 0.5, "b": 0.25, "c": 0.125}}


def test_a_new_head_says_how_many_rows_have_a_label() -> None:
    """Half a row is added to both sides: a label of no row has finite odds, too."""
    found = FORMATS["multi_label"].first_outputs(lambda: np.array([3 / 8, 0.0, 1.0]), 8)
    np.testing.assert_allclose(found, np.log([3.5 / 5.5, 0.5 / 8.5, 8.5 / 0.5]))
