"""The rows that are rehearsed: of each label and kind, and the longest; columns that can't be meant are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.data_stages import Bench, loaded_rows, new_bench, table
from trnflow.tasks.errors import DataError
from trnflow.tasks.rehearsal import sample_rows as module
from trnflow.tasks.rehearsal.sample_rows import SampleConfig, sample_rows

ROWS = 500


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return new_bench(tmp_path)


def sampled(bench: Bench, columns: dict[str, list[Any]], rows: int = 8, **meta: Any) -> dict[str, list[Any]]:
    given = loaded_rows(bench.root / f"given-{bench.count}", columns, **meta)
    return table(bench.made(sample_rows, SampleConfig(rows=rows), rows=given), "train")


def texts(count: int = ROWS) -> list[str]:
    return [f"this is the text of row {number}" for number in range(count)]


def test_a_few_rows_have_what_is_rare(bench: Bench) -> None:
    """A label of one row in 500, a blank text, a null, the longest text, a conversation that begins otherwise."""
    columns: dict[str, list[Any]] = {"text": texts(), "title": ["a title"] * ROWS, "label": [0] * ROWS}
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    columns["talk"] = [json.dumps(talk)] * ROWS
    columns["label"][77] = columns["label"][78] = 1
    columns["text"][101] = "  "
    columns["title"][203] = None
    columns["text"][307] = "long " * 100
    columns["talk"][411] = json.dumps([{"role": "system", "content": "be kind"}, *talk])
    counts = {"train": {"glad": ROWS - 2, "sad": 2}}
    found = sampled(bench, columns, text=["text"], labels=["glad", "sad"], label_counts=counts, nested=["talk"])
    assert len(found["text"]) == 8
    assert 1 in found["label"] and "  " in found["text"] and None in found["title"]
    assert "long " * 100 in found["text"] and any("be kind" in talk for talk in found["talk"])


def test_a_value_of_a_list_counts_as_a_label(bench: Bench) -> None:
    tags = [["news"]] * ROWS
    tags[123] = ["news", "sport"]
    found = sampled(bench, {"text": texts(), "tags": [json.dumps(each) for each in tags]}, nested=["tags"])
    assert '["news", "sport"]' in found["tags"] and len(found["tags"]) == 8


def test_every_label_of_a_cell_of_several_is_in_the_sample(bench: Bench) -> None:
    """However many there are, and whatever stands between them: else a sound split has a label that train's sample lacks."""
    cells = ["joy"] * ROWS
    cells[120:200] = [f"joy;label {number}" for number in range(80)]
    given = loaded_rows(bench.root / "given", {"text": texts(), "feelings": cells})
    made = bench.made(sample_rows, SampleConfig(rows=8, several="feelings"), rows=given)
    found = {name for cell in table(made, "train")["feelings"] for name in cell.split(";")}
    assert found == {"joy", *(f"label {number}" for number in range(80))}


def test_few_rows_are_all_taken_and_labels_are_counted_anew(bench: Bench) -> None:
    columns = {"text": texts(4), "label": [0, 1, 0, 1]}
    given = loaded_rows(
        bench.root / "given", columns, text=["text"], labels=["a", "b"], label_counts={"train": {"a": 2, "b": 2}}
    )
    made = bench.made(sample_rows, SampleConfig(rows=3), rows=given)
    assert made.meta["splits"] == {"train": 3} and made.meta["label_counts"] == {"train": {"a": 1, "b": 2}}, (
        "the longest of equals is the last"
    )
    assert table(bench.made(sample_rows, SampleConfig(), rows=given), "train") == columns


@pytest.mark.parametrize(
    ("columns", "labels", "message"),
    [
        ({"label": [0] * 7 + [1]}, ["glad", "sad"], "sad has one row in train"),
        ({"label": [number % 40 for number in range(200)]}, [str(n) for n in range(40)], "40 numbers from 0 to 39"),
        ({"label": list(range(60))}, [f"name {n}" for n in range(60)], "60 labels for 60 rows of train"),
        ({"text": [str(number / 7) for number in range(9)]}, None, "the column text holds numbers"),
        ({"text": [f"id-{number}" for number in range(9)]}, None, "the column text holds identifiers, such as id-0"),
    ],
)  # fmt: skip
def test_a_column_that_can_not_be_meant_is_refused(
    bench: Bench, columns: dict[str, list[Any]], labels: list[str] | None, message: str
) -> None:
    whole = {"text": texts(len(next(iter(columns.values())))), **columns}
    counts = {name: whole["label"].count(number) for number, name in enumerate(labels or ())}
    with pytest.raises(DataError, match=message):
        sampled(bench, whole, text=["text"], labels=labels, **({"label_counts": {"train": counts}} if labels else {}))


def test_more_labels_than_there_can_be_are_not_looked_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of texts that a recipe names by mistake."""
    monkeypatch.setattr(module, "MOST_LABELS", 3)
    given = loaded_rows(bench.root / "given", {"text": texts(), "feelings": texts()})
    made = bench.made(sample_rows, SampleConfig(rows=8, several="feelings"), rows=given)
    assert len(table(made, "train")["text"]) == 8
