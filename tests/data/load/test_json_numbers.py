"""A number of a JSON file that becomes text has the characters of the file; one that is learnt is a number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.load.rows import failure
from tests.helpers.data_stages import Bench, new_bench, table, trained
from trnflow.tasks.errors import DataError
from trnflow.tasks.system.json_numbers import dumps, loads

NUMBER = st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,5})?([eE][+-]?[0-9]{1,2})?", fullmatch=True).filter(
    lambda text: text != "-0"
)
USUAL = ["3", "0.10", "1e5", "2.5", "100.0", "12345678901234567890123", "-0.0", "1E-7", "1e400"]
NUMBERS = st.lists(NUMBER | st.sampled_from(USUAL), min_size=1, max_size=6)
ANY = settings(
    derandomize=True, max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{% for call in m.tool_calls %}{{ call.arguments | tojson }}|{{ call.arguments.x }}\
{% endfor %}</>{% endfor %}"
)


def write(bench: Bench, rows: list[str], array: bool = False) -> str:
    path: Path = bench.root / ("a.json" if array else "a.jsonl")
    path.write_text(f"[{', '.join(rows)}]" if array else "\n".join(rows) + "\n")
    return str(path)


@ANY
@given(numbers=NUMBERS, array=st.booleans())
def test_answers_texts_and_templates(numbers: list[str], array: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    bench = new_bench(tmp_path_factory.mktemp("any"))
    source = write(bench, [f'{{"q": "what?", "a": {number}}}' for number in numbers], array)
    rows = bench.rows(source=source)
    assert rows.meta["columns"] == ["q", "a"]
    asked = {"task": "instruction", "instruction": "q"}
    assert trained(bench.texts(rows, **asked, response="a")) == numbers
    assert trained(bench.texts(rows, **asked, response_template="{{ a }}")) == numbers
    assert trained(bench.texts(rows, **asked, response_template="{{ [a] | tojson }} {{ a + 0 > 0 }}")) == [
        f"[{number}] {float(number) > 0}" for number in numbers
    ]
    assert trained(bench.texts(rows, task="text", text="a")) == numbers
    assert table(bench.rows(source=source, text="a"), "train") == {"a": numbers}
    kept = table(rows, "train")["a"]
    assert all(isinstance(value, float | int) for value in kept) and [*map(float, kept)] == [*map(float, numbers)]


@ANY
@given(numbers=NUMBERS, other=st.sampled_from(["null", "[1.50]", '{"n": 1e3}', '"0.10"']))
def test_arguments_of_tools_and_lists(numbers: list[str], other: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    bench = new_bench(tmp_path_factory.mktemp("any"))
    given_ = [f'{{"x": {number}, "more": {other}}}' for number in numbers]
    rows = bench.rows(
        source=write(
            bench,
            [f'{{"messages": [{{"role": "assistant", "tool_calls": [{{"arguments": {it}}}]}}]}}' for it in given_],
        )
    )
    texts = trained(bench.texts(rows, task="chat", chat_template=CHAT))
    told = [text.removeprefix("<assistant>").removesuffix("</>") for text in texts]
    assert told == [f"{text}|{number}" for text, number in zip(given_, numbers, strict=True)]
    kept = table(rows, "train")["messages"]
    assert all(text in kept[at] for at, text in enumerate(given_))


WHOLE = st.integers(-(2**70), 2**70).map(str) | st.sampled_from(["1e5", "2E+3", "7.0", "12.00", "3"])


@ANY
@given(labels=st.lists(WHOLE, min_size=2, max_size=6))
def test_labels(labels: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    bench = new_bench(tmp_path_factory.mktemp("any"))
    source = write(bench, [f'{{"text": "x", "label": {label}}}' for label in labels])
    rows = bench.rows(source=source, label="label")
    names = [rows.meta["labels"][number] for number in table(rows, "train")["label"]]
    for name, label in zip(names, labels, strict=True):
        assert name == label or (name in labels and name.partition(".")[0] == label.partition(".")[0])
    assert rows.meta["labels"] == sorted({*names}, key=lambda name: (float(name), name))


def test_scores_stay_numbers(bench: Bench) -> None:
    scores = ["3", "0.10", "1e0", "2.5"]
    source = write(bench, [f'{{"text": "x", "score": {score}}}' for score in scores])
    rows = bench.rows(source=source, text="text", columns={"score": "score"})
    assert table(rows, "train")["score"] == [3.0, 0.1, 1.0, 2.5]
    assert pq.read_schema(rows.path / "train.parquet").field("score").type == "double"
    texts = bench.texts(rows, task="regression", target="score")
    assert [round(label, 6) for (label,) in table(texts, "train")["label"]] == [3.0, 0.1, 1.0, 2.5]


def test_labels_of_equal_numbers_are_one_class_and_that_is_said(bench: Bench) -> None:
    """pandas writes 1.0 where a column has gaps."""
    for split, labels in (("train", "0 1 1.0"), ("test", "1.0 0.0 2.0")):
        lines = [f'{{"text": "{split} {n}", "label": {label}}}\n' for n, label in enumerate(labels.split())]
        (bench.root / "rows").mkdir(exist_ok=True)
        (bench.root / f"rows/{split}.jsonl").write_text("".join(lines))
    told = failure(bench, DataError, source=str(bench.root / "rows"), label="label")
    assert "test.jsonl row 3: the label '2.0' is outside the label set (0, 1)" in told
    (bench.root / "rows/test.jsonl").write_text('{"text": "a", "label": 1.0}\n{"text": "b", "label": 0.0}\n')
    rows = bench.rows(source=str(bench.root / "rows"), label="label")
    assert rows.meta["labels"] == ["0", "1"]
    assert [table(rows, split)["label"] for split in ("train", "test")] == [[0, 1, 1], [1, 0]]
    (said,) = [event["info"] for event in bench.said if "equal numbers" in event.get("info", "")]
    assert said == "labels that are equal numbers count as one: 1.0 as 1, 0.0 as 0"


def test_nan_is_missing_and_infinity_is_its_text(bench: Bench) -> None:
    source = write(
        bench, ['{"q": "x", "a": NaN}', '{"q": "y", "a": Infinity}', '{"q": "z", "a": [NaN, -Infinity]}'][:2]
    )
    rows = bench.rows(source=source)
    assert trained(bench.texts(rows, task="instruction", instruction="q", response="a")) == ["Infinity"]
    assert "a.jsonl row 1: the text column a is missing (null)" in failure(bench, DataError, source=source, text="a")
    assert table(bench.rows(source=source, text="a", nulls="drop"), "train") == {"a": ["Infinity"]}
    told = failure(bench, DataError, source=source, text="q", label="a", nulls="drop")
    assert "a.jsonl row 2: the label Infinity is too large for a class" in told
    scored = bench.rows(source=source, text="q", columns={"a": "a"})
    with pytest.raises(DataError, match="split train row 1: a is missing"):
        bench.texts(scored, task="regression", target="a")
    nested = bench.rows(source=write(bench, ['{"a": [NaN, -Infinity, 0.50]}']))
    assert table(nested, "train")["a"] == ["[null, -Infinity, 0.50]"]


def test_numbers_of_several_files_and_sources_keep_their_texts(bench: Bench) -> None:
    for name, number in (("1", "3"), ("2", "0.10"), ("3", "null"), ("4", "2.5")):
        (bench.root / f"train-{name}.jsonl").write_text(f'{{"q": "{name}", "a": {number}}}\n')
    rows = bench.rows(source=str(bench.root), limit=4)
    assert trained(bench.texts(rows, task="instruction", instruction="q", response="a")) == ["3", "0.10", "2.5"]
    mix = {name: {"source": str(bench.root / f"train-{name}.jsonl")} for name in ("1", "2")}
    mixed = bench.rows(mix=mix)
    told = trained(bench.texts(mixed, task="instruction", instruction="q", response="a"))
    assert sorted(told) == ["0.10", "3"]


def test_a_column_that_has_the_name_of_the_texts_is_refused(bench: Bench) -> None:
    source = write(bench, ['{"a": 0.10, "a (as written)": "x"}'])
    with pytest.raises(Exception, match=r"a \(as written\) beside a"):
        bench.rows(source=source)


def test_answers_of_pairs_may_be_numbers_or_truth_values(bench: Bench) -> None:
    rows = ['{"prompt": "1 + 1?", "chosen": 2, "rejected": 0}', '{"prompt": "1 < 2?", "chosen": 1.50, "rejected": 0}']
    texts = bench.texts(bench.rows(source=write(bench, rows)), task="preference")
    assert [(row[-1]["text"]) for row in table(texts, "train")["parts"]] == ["2", "1.50"]
    assert [(row[-1]["text"]) for row in table(texts, "train")["rejected"]] == ["0", "0"]
    flags = bench.rows(source=write(bench, ['{"q": "a", "a": true}', '{"q": "b", "a": false}']))
    assert trained(bench.texts(flags, task="instruction", instruction="q", response="a")) == ["true", "false"]


@ANY
@given(numbers=NUMBERS, indent=st.sampled_from([None, 2]), sort=st.booleans())
def test_what_is_read_is_written_again(numbers: list[str], indent: Any, sort: bool) -> None:
    text = f'{{"b": [{", ".join(numbers)}], "a": {numbers[0]}}}'
    value = loads(text)
    assert dumps(value, ensure_ascii=False) == text
    assert json.loads(dumps(value, indent=indent, sort_keys=sort)) == json.loads(text)
    assert [*map(float, value["b"])] == [*map(float, numbers)]


@pytest.mark.parametrize("text", ["\0" + "0\0", "\0" + "7\0"])
def test_no_text_of_the_data_stands_for_a_number(bench: Bench, text: str) -> None:
    """The first was replaced by a number of its row, the second was an IndexError."""
    entries = [text, loads("1.10")]
    assert json.loads(dumps(entries)) == [text, 1.1]
    assert "a holds a NUL byte" in failure(bench, DataError, source=write(bench, [dumps({"a": entries})]))
