"""Nested values (lists, objects): as they are written in the source, from the reader to the template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.load.rows import failure, write
from tests.helpers.command_line import Shell
from tests.helpers.data_stages import files, new_bench, table, trained
from trnflow.tasks.artifact import Input
from trnflow.tasks.errors import DataError

TEMPLATE = """{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}\
{% for call in m.tool_calls %}{{ call | tojson }}{% endfor %}</>{% endfor %}"""
PLAIN = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}


def calling(**arguments: Any) -> dict:
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"messages": [{"role": "user", "content": "how is it?"}, answer]}


def write_lines(path: Path, rows: list[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def opened(rows: Input, column: str, split: str = "train") -> list[Any]:
    return [None if text is None else json.loads(text) for text in table(rows, split)[column]]


def test_calls_that_come_after_thousands_of_plain_chats_are_trained_on(bench, tmp_path):
    path = write_lines(tmp_path / "chats.jsonl", [PLAIN] * 4096 + [calling(city="Rome")])
    texts = bench.texts(bench.rows(source=path), task="chat", chat_template=TEMPLATE)
    assert '{"name": "weather", "arguments": {"city": "Rome"}}' in trained(texts)[-1]
    assert len(trained(texts)) == 4097


def test_a_row_has_no_key_of_another_row(bench, tmp_path):
    path = write_lines(tmp_path / "chats.jsonl", [calling(city="Rome"), calling(id=5), calling(city=None)])
    texts = bench.texts(bench.rows(source=path), task="chat", chat_template=TEMPLATE)
    calls = [json.loads(text[text.index("{") : text.rindex("}") + 1]) for text in trained(texts)]
    assert [call["function"]["arguments"] for call in calls] == [{"city": "Rome"}, {"id": 5}, {"city": None}]


def test_calls_reach_the_tokens_through_the_command_line(trnflow: Shell):
    """A recipe, a process, and the artifact that `get` gives."""
    rows = [PLAIN] * 5000 + [calling(city="Rome"), calling(id=5)]
    write_lines(trnflow.folder / "chats/train.jsonl", rows)
    recipe = (
        "extends: demo-llm\nname: chats\ndata: {source: chats, name: null, split: {}}\ntracking: {enabled: false}\n"
        f"format: {{task: chat, chat_template: {json.dumps(TEMPLATE)}}}\n"
    )
    (trnflow.folder / "chats.yaml").write_text(recipe)
    done = trnflow("run", "chats.yaml", "--until", "format_prompts", "--direct")
    assert done.returncode == 0, done.stderr
    trnflow.json("get", "chats.yaml", "format_prompts", "texts")
    parts = pq.read_table(trnflow.folder / "texts/train.parquet")["parts"].to_pylist()
    said = ["".join(part["text"] for part in row if part["train"]) for row in parts[-2:]]
    assert ['{"city": "Rome"}' in said[0], '"id"' in said[0], '{"id": 5}' in said[1], '"city"' in said[1]] == [
        True, False, True, False,
    ]  # fmt: skip
    trnflow.json("get", "chats.yaml", "load_data", "loaded")
    written = pq.read_table(trnflow.folder / "loaded/train.parquet")
    assert written.schema.field("messages").type == pa.string()
    assert [json.loads(text) for text in written["messages"].to_pylist()] == [row["messages"] for row in rows]


VALUES = {
    "order": {"z": 1, "a": 2, "m": [{"b": 1, "a": None}]},
    "numbers": [1, 1.0, 0.12345678901234567, 1e-12, 1e22, 2**70, -0.0, True],
    "texts": ["2020-01-01", "1", "a/b é 😀", "", "null"],
    "empty": [{}, [], [[]], None],
}


def test_keys_order_and_number_types_stay(bench, tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"value": value} for value in VALUES.values()] + [{"value": None}])
    rows = bench.rows(source=path)
    assert rows.meta["nested"] == ["value"]
    assert table(rows, "train")["value"] == [
        *(json.dumps(value, ensure_ascii=False) for value in VALUES.values()), None,
    ]  # fmt: skip
    made = bench.texts(rows, task="instruction", prompt_template="{{ value }}", response_template="x")
    prompts = [row[0]["text"] for row in table(made, "train")["parts"]]
    assert prompts == [str(value) for value in (*VALUES.values(), None)]


def test_a_text_that_looks_like_json_or_a_date_stays_a_text(bench, tmp_path):
    """Beside objects, too: a mixed column."""
    mixed = ["2020-01-01", "123", "true", "[1]", {"a": "123"}, [1, "1"], "", None]
    path = write_lines(tmp_path / "a.jsonl", [{"mixed": value, "text": "2020-01-01"} for value in mixed])
    rows = bench.rows(source=path)
    assert opened(rows, "mixed") == mixed
    assert table(rows, "train")["text"] == ["2020-01-01"] * len(mixed)
    assert rows.meta["nested"] == ["mixed"]


def test_flat_rows_have_no_nested_columns(bench, tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"a": "x", "n": 1}])
    assert "nested" not in bench.rows(source=path).meta


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(derandomize=True, max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.lists(JSON, max_size=3) | st.dictionaries(TEXT, JSON, max_size=3), min_size=1, max_size=6))
@pytest.mark.parametrize("array", [False, True])
def test_any_json_comes_through(rows, array, tmp_path_factory):
    bench = new_bench(tmp_path_factory.mktemp("any"))
    path = bench.root / ("a.json" if array else "a.jsonl")
    told = [{"value": row} for row in rows]
    path.write_text(json.dumps(told, indent=1) if array else "".join(json.dumps(row) + "\n" for row in told))
    found = opened(bench.rows(source=str(path)), "value")
    assert repr(found) == repr(rows)  # 1 and 1.0 differ, and so does the order of keys


def test_real_chats_with_tools_are_those_of_the_file(bench, shared):
    source = shared / "data/chat_tools/train.json"
    rows = bench.rows(source=str(source))
    told = json.loads(source.read_text(encoding="utf-8"))
    assert rows.meta["splits"] == {"train": 300} and rows.meta["nested"] == ["conversations"]
    assert opened(rows, "conversations") == [row["conversations"] for row in told]
    assert table(rows, "train")["tools"] == [row["tools"] for row in told]
    texts = bench.texts(rows, task="chat", messages="conversations", chat_template="sections")
    for parts, row in zip(table(texts, "train")["parts"], told, strict=True):
        said = "".join(part["text"] for part in parts)
        assert all(message["value"] in said for message in row["conversations"])


@pytest.mark.parametrize("late", [5000, 40_000])
def test_a_column_that_only_later_rows_have(bench, tmp_path, late):
    """Also beyond the 10 MB that `datasets` would look at."""
    rows = [{"text": "x" * 300, "n": 1}] * late + [{"text": "y", "n": 1.5, "more": ["late"], "mark": "z"}]
    found = bench.rows(source=write_lines(tmp_path / "a.jsonl", rows))
    assert found.meta["columns"] == ["text", "n", "more", "mark"]
    data = table(found, "train")
    assert [data[name][0] for name in ("n", "more", "mark")] == [1.0, None, None]
    assert [data[name][-1] for name in ("n", "more", "mark")] == [1.5, '["late"]', "z"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_files_unite_their_columns(bench, tmp_path, kind):
    write(tmp_path / f"train-1.{kind}", {"text": ["x"], "a": ["1"]})
    write(tmp_path / f"train-2.{kind}", {"b": ["2"], "text": ["y"]})
    write(tmp_path / f"test.{kind}", {"text": ["z"], "c": ["3"]})
    rows = bench.rows(source=str(tmp_path))
    assert rows.meta["columns"] == ["text", "a", "b", "c"]
    assert table(rows, "train") == {"text": ["x", "y"], "a": ["1", None], "b": [None, "2"], "c": [None, None]}
    assert table(rows, "test") == {"text": ["z"], "a": [None], "b": [None], "c": ["3"]}


def test_a_column_may_be_nested_in_one_file_alone(bench, tmp_path):
    tools = [{"name": "weather"}]
    write_lines(tmp_path / "train-1.jsonl", [{"text": "x", "tools": json.dumps(tools)}])
    write_lines(tmp_path / "train-2.jsonl", [{"text": "y", "tools": tools}])
    write_lines(tmp_path / "test.jsonl", [{"text": "z", "tools": "none"}, {"text": "w", "tools": None}])
    rows = bench.rows(source=str(tmp_path))
    assert rows.meta["nested"] == ["tools"]
    assert opened(rows, "tools") == [json.dumps(tools), tools]
    assert opened(rows, "tools", "test") == ["none", None]
    mixed = bench.rows(mix={name: {"source": str(tmp_path / f"train-{name}.jsonl")} for name in ("1", "2")})
    assert sorted(map(repr, opened(mixed, "tools"))) == sorted(map(repr, (json.dumps(tools), tools)))


def test_numbers_of_several_files_share_a_type_where_none_is_lost(bench, tmp_path):
    write(tmp_path / "set/train-1.parquet", {"n": pa.array([1, 2], pa.int32())})
    write(tmp_path / "set/train-2.parquet", {"n": [2**40]})
    write(tmp_path / "set/train-3.parquet", {"n": pa.nulls(1)})
    write(tmp_path / "set/train-4.parquet", {"n": [0.5]})
    assert table(bench.rows(source=str(tmp_path / "set")), "train")["n"] == [1.0, 2.0, 2.0**40, None, 0.5]
    write(tmp_path / "set/train-5.parquet", {"n": [1, 2**60 + 1]})
    told = failure(bench, DataError, source=str(tmp_path / "set"))
    assert "train-5.parquet row 2: n is 1152921504606846977, which is no double" in told


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ([{"n": 1}], [{"n": None}, {"n": "one"}], "train-2.jsonl row 2: n is of type string, in train-1.jsonl int64"),
        ([{"n": "1"}], [{"n": 1}], "train-2.jsonl row 1: n is of type int64, in train-1.jsonl string"),
        ([{"n": 1}, {"n": True}], [{"n": None}], "train-1.jsonl row 1: n is 1, which is no bool"),
        ([{"n": 2**63}], [{"n": "1"}], "train-2.jsonl row 1: n is of type string, in train-1.jsonl"),
    ],
)
def test_a_conflict_of_types_names_file_and_row(bench, tmp_path, first, second, told):
    write_lines(tmp_path / "set/train-1.jsonl", first)
    write_lines(tmp_path / "set/train-2.jsonl", second)
    assert told in failure(bench, DataError, source=str(tmp_path / "set"))
    for row in first + second:
        row["text"] = "the column in conflict is not read"
    write_lines(tmp_path / "set/train-1.jsonl", first)
    write_lines(tmp_path / "set/train-2.jsonl", second)
    assert bench.rows(source=str(tmp_path / "set"), text="text").meta["columns"] == ["text"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"value": {"a": 1, "b": 2, "a": 3}}', "line 2 is not JSON: the key 'a' stands twice in one object"),
        ('{"value": 1, "value": 2}', "line 2 is not JSON: the key 'value' stands twice in one object"),
        ('{"value": ' + "[" * 100_000 + "]" * 100_000 + "}", "line 2 is nested too deeply"),
        ('{"value": ' + "[" * 700 + "1.10" + "]" * 700 + "}", "row 2: value is nested too deeply"),
        ('{"value": ["half \\ud83d"]}', r"row 2: value holds '\ud83d', half a character"),
    ],
)
def test_json_that_can_not_come_through_names_its_line(bench, tmp_path, line, told):
    (tmp_path / "a.jsonl").write_text(f'{{"value": []}}\n{line}\n')
    assert f"a.jsonl {told}" in failure(bench, DataError, source=str(tmp_path / "a.jsonl"))


def test_parquet_and_json_lines_of_equal_content_give_equal_bytes(bench, tmp_path):
    rows = [calling(city="Rome"), PLAIN, calling(city="Oslo")]
    rows[0]["messages"][1].pop("content")
    rows[2]["messages"][1].pop("content")
    lines = bench.rows(source=write_lines(tmp_path / "a.jsonl", rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    parquet = bench.rows(source=str(tmp_path / "a.parquet"))
    assert files(parquet.path) == files(lines.path)
    assert parquet.meta == lines.meta


def test_nested_parquet_of_every_kind(bench, tmp_path):
    """A null field of a struct is left out: Parquet can't tell it from one that is not there. Other nulls stay."""
    import datetime

    columns = {
        "struct": pa.array([{"a": 1, "b": None}, {"b": "x"}, None]),
        "map": pa.array([[("k", 1), ("l", None)], [], None], pa.map_(pa.string(), pa.int64())),
        "list": pa.array([[None, {"a": None}], [], None], pa.list_(pa.struct([("a", pa.int8())]))),
        "large": pa.array([["x"], ["y", "x"], None], pa.large_list(pa.dictionary(pa.int8(), pa.string()))),
        "when": pa.array([[datetime.date(2020, 1, 2)], [], None]),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"z":1.0,"a":null}', "5", None])),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    rows = bench.rows(source=str(tmp_path / "a.parquet"))
    assert {name: opened(rows, name) for name in columns} == {
        "struct": [{"a": 1}, {"b": "x"}, None],
        "map": [{"k": 1, "l": None}, {}, None],
        "list": [[None, {}], [], None],
        "large": [["x"], ["y", "x"], None],
        "when": [["2020-01-02"], [], None],
        "json": [{"z": 1.0, "a": None}, 5, None],
    }
    assert rows.meta["nested"] == sorted(columns)
    assert list(opened(rows, "json")[0]) == ["z", "a"]


def test_parquet_that_datasets_wrote_with_json_in_it(bench, tmp_path):
    from datasets import Dataset, Features, Json, List, Value

    features = Features({"messages": List(Json()), "tools": Json(), "text": Value("string")})
    told = {
        "messages": [[{"role": "user"}, {"role": "tool", "id": None, "n": 1.0}], []],
        "tools": [[{"name": "weather"}], {"none": None}],
        "text": ["x", "y"],
    }
    Dataset.from_dict(told, features=features).to_parquet(tmp_path / "a.parquet")
    rows = bench.rows(source=str(tmp_path / "a.parquet"))
    assert (opened(rows, "messages"), opened(rows, "tools")) == (told["messages"], told["tools"])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([[b"\x00"]], "a.parquet row 2: value: JSON has no type for bytes"),
        ([[("k", 1), ("k", 2)]], "a.parquet row 2: value: the key 'k' stands twice in one object"),
    ],
)
def test_nested_parquet_that_json_can_not_say(bench, tmp_path, values, told):
    kind = pa.map_(pa.string(), pa.int64()) if "twice" in told else pa.list_(pa.binary())
    pq.write_table(pa.table({"value": pa.array([[], *values], kind)}), tmp_path / "a.parquet")
    assert told in failure(bench, DataError, source=str(tmp_path / "a.parquet"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_nested_values_are_neither_text_nor_label(bench, tmp_path, kind):
    path = str(write(tmp_path / f"a.{kind}", {"text": ["x", "y"], "more": [None, ["y"]]}))
    told = f"a.{kind} row 2: the text column more is a list or an object"
    assert told in failure(bench, DataError, source=path, text=["text", "more"])
    told = f"a.{kind} row 2: the label is a list or an object"
    assert told in failure(bench, DataError, source=path, text="text", label="more")


def test_a_single_list_among_texts_is_found(bench, tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"text": "[x]"}] * 5000 + [{"text": ["x"]}])
    assert "a.jsonl row 5001: the text column text is a list" in failure(bench, DataError, source=path, text="text")


def test_equal_nested_rows_are_duplicates_and_stay_on_one_side(bench, tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [calling(city=f"Rome {n % 50}") for n in range(100)])
    assert bench.rows(source=path, dedupe=True).meta["splits"] == {"train": 50}
    assert bench.rows(source=path, split={"test": 0.2}).meta["leakage"] == {"train/test": 0}
