"""Columns of every type of Arrow as text, as label and as a further column: the values that pyarrow gives, or one line that
names file, row and column."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.data_stages import new_bench, table, trained
from trnflow.flows.authoring.choose import choose
from trnflow.flows.authoring.look import look
from trnflow.flows.authoring.write import complete, recipe_text
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.row_format import RowFormat
from trnflow.tasks.data.load.config import SourceConfig
from trnflow.tasks.data.load.row_sizes import row_sizes
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.prediction.prompts import shape_of
from trnflow.tasks.prediction.row_files import RowFile
from trnflow.tasks.sources.resolver import Resolver

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
INSTANTS = st.integers(-(10**9), 4 * 10**9)
NESTED = (pa.types.is_nested, lambda kind: isinstance(kind, pa.JsonType))
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.integers(-9, 9).map(float),
    pa.decimal128(9, 3): st.decimals(-99999, 99999, places=3),
    pa.decimal256(40, 20): st.decimals(-9, 9, places=20),
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.string_view(): TEXT,
    pa.binary(): st.binary(max_size=4) | TEXT.map(str.encode),
    pa.large_binary(): TEXT.map(str.encode),
    pa.binary_view(): TEXT.map(str.encode),
    pa.binary(3): st.binary(min_size=3, max_size=3) | st.just(b"abc"),
    pa.date32(): st.dates() | st.just(10**8),
    pa.date64(): st.dates(),
    pa.time32("ms"): st.times().map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000)),
    pa.time64("us"): st.times(),
    pa.timestamp("s"): INSTANTS | st.just(10**14),
    pa.timestamp("ms", tz="Europe/Berlin"): INSTANTS.map(lambda second: 1000 * second + second % 1000),
    pa.timestamp("us"): INSTANTS.map(lambda second: 10**6 * second + second % 10**6),
    pa.timestamp("ns"): INSTANTS.map(lambda second: 10**9 * second + second % 10**9),
    pa.timestamp("us", tz="Nowhere/Land"): INSTANTS,
    pa.duration("s"): INSTANTS | st.just(10**16),
    pa.duration("ns"): INSTANTS,
    pa.dictionary(pa.int8(), pa.string()): TEXT,
    pa.dictionary(pa.int32(), pa.string(), ordered=True): st.sampled_from(["low", "high"]),
    pa.dictionary(pa.int8(), pa.int64()): st.integers(0, 3),
    pa.uuid(): st.uuids().map(lambda uuid: uuid.bytes),
    pa.bool8(): st.integers(0, 1),
    pa.list_(pa.int64()): st.lists(st.integers(0, 9), max_size=2),
    pa.list_(pa.float32(), 2): st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=2),
    pa.large_list(pa.date32()): st.lists(st.dates(), max_size=2),
    pa.struct([("a", pa.decimal128(5, 2)), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.decimals(-99, 99, places=2), "b": TEXT}
    ),
    pa.struct([("bytes", pa.binary())]): st.fixed_dictionaries({"bytes": st.binary(max_size=2)}),
    pa.map_(pa.string(), pa.float64()): st.dictionaries(TEXT, st.floats(-9, 9), max_size=2).map(
        lambda entries: [*entries.items()]
    ),
    pa.json_(): st.sampled_from(['{"a": 0.10}', "[1e5]", "3", "null", '"x"']),
}
ARROW_ONLY: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.month_day_nano_interval(): st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    pa.list_view(pa.int8()): st.lists(st.integers(0, 9), max_size=2),
    pa.time64("ns"): st.integers(0, 86_399 * 10**9),
}
"""Types that Parquet's files do not have."""


@st.composite
def columns(draw: Any) -> tuple[str, pa.Array]:
    """A file's name and a column of 30 rows, some of them null."""
    arrow = draw(st.booleans())
    kind, values = draw(st.sampled_from([*({**KINDS, **ARROW_ONLY} if arrow else KINDS).items()]))
    few = draw(st.lists(values, min_size=1, max_size=5))
    rows = [few[at] for at in draw(st.lists(st.integers(0, len(few) - 1), min_size=30, max_size=30))]
    # pyarrow can't read back null lists of a fixed size
    missing = draw(st.sets(st.integers(0, 29), max_size=0 if pa.types.is_fixed_size_list(kind) else 2))
    rows = [None if at in missing else row for at, row in enumerate(rows)]
    if isinstance(kind, pa.BaseExtensionType):
        array = pa.ExtensionArray.from_storage(kind, pa.array(rows, kind.storage_type))
    elif pa.types.is_dictionary(kind):
        array = pa.array(rows, kind.value_type).dictionary_encode().cast(kind)
    else:
        array = pa.array(rows, pa.int64()).cast(kind) if all_integers(rows, kind) else pa.array(rows, kind)
    if draw(st.booleans()) and arrow and (pa.types.is_integer(kind) or pa.types.is_string(kind)):
        array = pc.run_end_encode(array)
    return ("a.arrow" if arrow else "a.parquet"), array


def all_integers(rows: list[Any], kind: pa.DataType) -> bool:
    """Whether values of a date or time are given as numbers."""
    return pa.types.is_temporal(kind) and not pa.types.is_date(kind) and all(isinstance(v, int | None) for v in rows)


def texts_of(array: pa.Array) -> list[str | None]:
    """What pyarrow and numpy say that the values are, as text; None for a missing one. Raises for what they can't tell."""
    if pa.types.is_floating(array.type):
        return [
            None if math.isnan(value) else repr(float(str(value)))  # numpy writes the shortest text of 16 and 32 bits
            for value in array.to_numpy(zero_copy_only=False)
        ]
    if array.type == pa.time64("ns"):
        return [
            text and text.removesuffix("000").removesuffix(".000000") for text in array.cast(pa.string()).to_pylist()
        ]
    return [None if value is None else plain(value) for value in array.to_pylist()]


def plain(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def write(folder: Path, name: str, **columns: Any) -> str:
    data = pa.table(columns)
    if name.endswith("parquet"):
        pq.write_table(data, folder / name)
    else:
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_file(sink, data.schema) as writer:
            writer.write_table(data)
    return str(folder / name)


def nested(array: pa.Array) -> bool:
    kind = array.type.value_type if pa.types.is_run_end_encoded(array.type) else array.type
    return pa.types.is_nested(kind) or isinstance(kind, pa.JsonType)


def read(array: pa.Array) -> list[str | None] | None:
    """`texts_of`, None where a value has no text."""
    try:
        return None if nested(array) else texts_of(array)
    except (ValueError, OverflowError, LookupError):
        return None


def usable(texts: list[str | None]) -> list[str]:
    return [text for text in texts if text is not None and text.strip() and "\0" not in text]


def is_told(error: Exception, name: str, column: str, there: list[str] | None) -> None:
    """Whether an error of one line names file, row and column, or says that no value is there."""
    said = str(error)
    assert "\n" not in said
    if there == []:
        assert "is empty" in said, said
    else:
        assert name in said and " row " in said and re.search(column, said), said


ANY = settings(
    derandomize=True, max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@ANY
@given(made=columns())
def test_a_text_column_of_any_type(made: tuple[str, pa.Array], tmp_path_factory: pytest.TempPathFactory) -> None:
    name, array = made
    bench, told = new_bench(tmp_path_factory.mktemp("any")), read(array)
    source = write(bench.root, name, body=array, label=["x", "y"] * 15)
    if not told or not usable(told):
        with pytest.raises(DataError) as caught:
            bench.rows(source=source, text="body", label="label", nulls="drop")
        is_told(caught.value, name, "body", told and usable(told))
    else:
        rows = bench.rows(source=source, text="body", label="label", nulls="drop")
        assert table(rows, "train")["body"] == usable(told)


@ANY
@given(made=columns())
def test_a_label_column_of_any_type(made: tuple[str, pa.Array], tmp_path_factory: pytest.TempPathFactory) -> None:
    name, array = made
    bench, told = new_bench(tmp_path_factory.mktemp("any")), read(array)
    source = write(bench.root, name, text=[f"row {n}" for n in range(30)], mark=array)
    labels = [text if text and usable([text]) and text.strip().lower() != "nan" else None for text in told or ()]
    if pa.types.is_floating(array.type):
        labels = [str(int(float(label))) if label and is_class(label) else label for label in labels]
    there = [label for label in labels if label is not None]
    if not there or (all(map(is_number, there)) and not all(map(is_class, there))):
        with pytest.raises(DataError) as caught:
            bench.rows(source=source, text="text", label="mark", nulls="drop")
        is_told(caught.value, name, "the label|mark", None if told is None else there)
    else:
        rows = bench.rows(source=source, text="text", label="mark", nulls="drop")
        data = table(rows, "train")
        assert data["text"] == [f"row {n}" for n, label in enumerate(labels) if label is not None]
        assert [rows.meta["labels"][number] for number in data["label"]] == there


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_class(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d+", text)) or (float(text).is_integer() and abs(float(text)) < 2**63)


@ANY
@given(made=columns())
def test_a_further_column_of_any_type_as_answer(
    made: tuple[str, pa.Array], tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, array = made
    bench, told = new_bench(tmp_path_factory.mktemp("any")), read(array)
    source = write(bench.root, name, ask=["why?"] * 30, answer=array)

    def answers() -> list[str]:
        rows = bench.rows(source=source, nulls="drop")
        return trained(bench.texts(rows, task="instruction", instruction="ask", response="answer"))

    if nested(array) and not holds_bytes(array.type):
        assert [json.loads(answer) is not None for answer in answers()]
    elif not told or not usable(told):
        with pytest.raises(DataError) as caught:
            answers()
        is_told(caught.value, name, "answer", told and usable(told))
    else:
        assert answers() == usable(told)


def holds_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and pa.types.is_binary(kind.field(0).type)


@ANY
@given(made=columns(), role=st.sampled_from(["text", "label", "answer", "note"]))
def test_new_looks_at_any_column(
    made: tuple[str, pa.Array], role: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It describes the values, or leaves the column out and says why."""
    name, array = made
    folder, told = tmp_path_factory.mktemp("any"), read(array)
    texts, labels = [f"what is the {n}th number of them all?" for n in range(30)], ["x", "y"] * 15
    others = {"text": {"label": labels}, "answer": {"question": texts}, "label": {"text": texts}}
    source = write(folder, name, **others.get(role, {"text": texts, "label": labels}), **{role: array})
    given = {"data": {"text": "text", "label": "label"} if role == "text" else {}}
    looked = look(SourceConfig(source=source), Resolver(folder))
    if role in looked.unreadable:
        assert told is None and f"{name} row " in looked.unreadable[role]
    elif told is not None:
        seen = looked.columns[role].counts
        assert {*map(number_or_text, seen)} == {number_or_text(text) for text in told if (text or "").strip()}
    try:
        draft = choose(looked, given)
        complete(draft, looked, source, given, hub=False)
        assert recipe_text(draft, looked, "any", hub=False)
    except (ConfigError, DataError) as error:
        assert "\n" not in str(error)


def number_or_text(value: str) -> float | str:
    return float(value) if is_number(value) else value


@ANY
@given(made=columns())
def test_predict_reads_a_file_s_texts_as_training_did(
    made: tuple[str, pa.Array], tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, array = made
    folder, told = tmp_path_factory.mktemp("any"), read(array)
    source = Path(write(folder, name, body=array))
    settings = FormatConfig(task="classification").model_dump(mode="json")
    shape = shape_of(RowFormat("classification", settings, ["body"], ["body", "label"], [], 64), folder)
    if told is None and not nested(array):
        with pytest.raises(DataError) as caught:
            [*RowFile(source, ["body"], [])]
        is_told(caught.value, name, "body", None)
    elif told is not None:
        rows = [row for _, row in RowFile(source, ["body"], [])]
        texts = [shape.of_row(row, "row")[0]["text"] for row in rows if row["body"] is not None]
        assert [text for text in texts if text] == [text for text in told if text]


def test_each_row_of_a_run_has_the_size_of_its_own_value() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), pa.array(["a" * 10, "bb"]))
    assert row_sizes(runs).tolist() == [14, 14, 6, 6, 6]
    assert row_sizes(runs.slice(1, 3)).tolist() == [14, 6, 6]
