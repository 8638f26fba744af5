"""Files of a few KB whose rows would fill a disk or the memory, and honest tables that look like them."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.data.load.rows import PACKS, failure, write
from tests.helpers.data_stages import Bench, table
from trnflow.tasks.data.load import parquet_rows
from trnflow.tasks.data.load.parquet_rows import FOOTER, open_parquet
from trnflow.tasks.data.load.readers import open_file
from trnflow.tasks.data.load.row_sizes import BATCH, batch_sizes, in_batches, row_sizes
from trnflow.tasks.errors import DataError, MachineError

MB = 1 << 20
ROWS = 200
TEXT = "".join(random.Random(0).choices("abcdefgh ", k=100_000))
"""Of which ROWS are 20 MB."""


def repeated(count: int, text: str = TEXT) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([text]))


def write_arrow(path: Path, columns: dict, compression: str | None = None) -> None:
    data = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(sink, data.schema, options=options) as writer:
            writer.write_table(data)


def parquet(path: Path, *, dictionary: bool) -> None:
    pq.write_table(pa.table({"text": [TEXT] * ROWS}), path, compression="zstd", use_dictionary=dictionary)


BOMBS = {
    "dictionary.parquet": partial(parquet, dictionary=True),
    "pages.parquet": partial(parquet, dictionary=False),
    "typed.parquet": lambda path: pq.write_table(pa.table({"text": repeated(ROWS)}), path),
    "dictionary.arrow": lambda path: write_arrow(path, {"text": repeated(ROWS)}),
    "buffers.arrow": lambda path: write_arrow(path, {"text": ["a" * 100_000] * ROWS}, "zstd"),
    "runs.arrow": lambda path: write_arrow(path, {"text": pc.run_end_encode(pa.array([TEXT] * ROWS))}),
    "list.arrow": lambda path: write_arrow(
        path, {"text": ["a"] * 200, "more": pa.ListArray.from_arrays([*range(201)], repeated(200))}
    ),
}
"""{name: writes a small file whose rows have 20 MB}"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of 2 MB instead of 64."""
    monkeypatch.setattr("trnflow.tasks.sources.data_files.ALWAYS_UNPACKED", 2 * MB)
    monkeypatch.setattr("trnflow.tasks.data.load.row_sizes.BATCH_BYTES", MB)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", BOMBS)
def test_a_table_that_grows_too_much_is_refused_and_accepted_with_its_setting(bench, tmp_path, name):
    BOMBS[name](tmp_path / name)
    if (tmp_path / name).stat().st_size > 90_000:  # its growth is less than 200
        held, most = {"max_growth": 20}, "20"
    else:
        held, most = {}, "200"
    error = failure(bench, DataError, source=str(tmp_path / name), limit=3, **held)
    assert f"{name} grows from " in error and f"raise data.max_growth ({most})" in error
    rows = bench.rows(source=str(tmp_path / name), limit=3, max_growth=100_000)
    assert rows.meta["splits"] == {"train": 3}
    written = sum(path.stat().st_size for path in bench.root.rglob("scratch-*/**/*") if path.is_file())
    assert written < MB  # no copy of 20 MB


@pytest.mark.usefixtures("small")
def test_an_honest_table_of_one_long_prompt_has_its_setting(bench, tmp_path):
    columns = {"prompt": [TEXT] * ROWS, "text": [f"question {number}" for number in range(ROWS)]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert "grows from" in failure(bench, DataError, source=str(tmp_path / "a.parquet"), max_growth=10)
    rows = bench.rows(source=str(tmp_path / "a.parquet"), max_growth=1000)
    assert table(rows, "train") == columns


@pytest.mark.usefixtures("small")
def test_a_column_that_nothing_reads_is_no_growth(bench, tmp_path):
    # more rows than a batch of `text` has are read before it is too much
    columns = {"prompt": ["p" * 100] * 20_000, "text": [f"question {number}" for number in range(20_000)]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    rows = bench.rows(source=str(tmp_path / "a.parquet"), text="text", max_growth=10)
    assert table(rows, "train") == {"text": columns["text"]}


@pytest.mark.usefixtures("small")
def test_packed_files_have_the_same_setting(bench, tmp_path):
    text = b"text\n" + (b"0" * 999 + b"\n") * 4_000
    (tmp_path / "a.csv.gz").write_bytes(PACKS["gz"](text))
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", text)
    for name in ("a.csv.gz", "a.zip"):
        assert "raise data.max_growth" in failure(bench, DataError, source=str(tmp_path / name), text="text")
        rows = bench.rows(source=str(tmp_path / name), text="text", max_growth=2000, limit=2)
        assert rows.meta["splits"] == {"train": 2}


def test_an_xz_file_that_wants_gigabytes_to_be_unpacked_is_refused(bench, tmp_path):
    packed = bytearray(lzma.compress(b"text\na\n"))
    header = slice(12, 12 + (packed[12] + 1) * 4)  # of the first block
    block = packed[header]
    block[block.index(b"\x21\x01") + 2] = 40  # keep 4 GiB of what was unpacked
    packed[header] = block[:-4] + struct.pack("<I", zlib.crc32(block[:-4]))
    for name, content in (("a.csv.xz", packed), ("second.csv.xz", lzma.compress(b"text\na\n") + packed)):
        (tmp_path / name).write_bytes(content)
        told = failure(bench, DataError, source=str(tmp_path / name), text="text")
        assert f"{name} can't be read: Memory usage limit exceeded" in told


@pytest.mark.usefixtures("small")
def test_a_list_of_millions_of_equal_numbers_is_known_by_the_footer(bench, tmp_path):
    numbers = pa.ListArray.from_arrays([0, 2_000_000], pa.array([0] * 2_000_000, pa.int64()))
    pq.write_table(pa.table({"text": ["a"], "numbers": numbers}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 20_000
    assert "a.parquet grows from " in failure(bench, DataError, source=str(tmp_path / "a.parquet"))
    with pytest.raises(DataError, match="to more than 16,0"):  # before a row is decoded
        next(open_file(tmp_path / "a.parquet", "parquet", "a.parquet").batches(["numbers"]))


@pytest.mark.usefixtures("small")
def test_a_footer_that_says_less_than_the_pages_is_not_believed(tmp_path):
    """1 kB whose footer said ten values took gigabytes."""
    numbers = pa.ListArray.from_arrays([0, 2_000_000], pa.array([0] * 2_000_000, pa.int64()))
    pq.write_table(pa.table({"text": ["a"], "numbers": numbers}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    pages, footer = (
        content[: -8 - int.from_bytes(content[-8:-4], "little")],
        content[-8 - int.from_bytes(content[-8:-4], "little") :],
    )
    honest, lie = b"\x80\x92\xf4\x01", b"\x94\x80\x80\x00"  # 2,000,000 and 10, in as many bytes
    assert honest in pages and honest in footer
    (tmp_path / "a.parquet").write_bytes(pages + footer.replace(honest, lie))
    assert pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(1).num_values == 10
    with pytest.raises(DataError, match="to more than 16,0"):
        next(open_file(tmp_path / "a.parquet", "parquet", "a.parquet").batches(["numbers"]))


def test_a_value_of_a_large_page_is_decoded_for_one_row_at_a_time(tmp_path, monkeypatch):
    parquet(tmp_path / "a.parquet", dictionary=True)
    sizes = []
    monkeypatch.setattr(parquet_rows, "in_batches", lambda batches: sizes.extend(map(len, batches)) or iter(()))
    for most in (1 << 29, 2 * len(TEXT)):
        monkeypatch.setattr(parquet_rows, "LARGEST", most + 100)
        assert not [*open_parquet(tmp_path / "a.parquet", "a.parquet")[1](["text"])]
    assert sizes == [32] * 6 + [8] + [2] * 100


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ([0, 3, 5, 6], [0, 3, 5, 5000], pa.array(["abc", "de", "f"])),
        ([0, 3, 5, 6], [-100_000, 3, 5, 6], pa.array(["abc", "de", "f"])),
        ([0, 2, 3, 4], [0, 2, 3, 10**9], pa.array([["a", "b"], ["c"], ["d"]])),
        (
            [1, 0, 2],
            [-(10**6), 0, 2],
            pa.DictionaryArray.from_arrays(pa.array([1, 0, 2], pa.int32()), pa.array([*"abc"])),
        ),
    ],
    ids=["after", "before", "list", "dictionary"],
)
def test_offsets_that_lead_out_of_an_arrow_file_are_refused(tmp_path, old, new, values):
    """They ended the process, or made rows of its memory."""
    write_arrow(tmp_path / "a.arrow", {"text": values})
    old, new = (np.array(numbers, "<i4").tobytes() for numbers in (old, new))
    content = (tmp_path / "a.arrow").read_bytes()
    assert old in content
    (tmp_path / "a.arrow").write_bytes(content.replace(old, new))
    with pytest.raises(DataError, match=r"a\.arrow row \d: text is broken"):
        next(open_file(tmp_path / "a.arrow", "arrow", "a.arrow").batches(["text"]))


@pytest.mark.usefixtures("small")
def test_a_column_whose_name_has_a_dot_is_known_by_the_footer(tmp_path):
    numbers = pa.ListArray.from_arrays([0, 2_000_000], pa.array([0] * 2_000_000, pa.int64()))
    pq.write_table(pa.table({"a.numbers": numbers}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="to more than 16,0"):
        next(open_file(tmp_path / "a.parquet", "parquet", "a.parquet").batches(["a.numbers"]))


def runs(count: int, text: str) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int64()), pa.array([text]))


@pytest.mark.parametrize(
    "columns",
    [
        {"text": runs(2_000_000_000, "a"), "label": runs(2_000_000_000, "b")},
        {"text": ["a"] * 100, "more": pa.FixedSizeListArray.from_arrays(pa.nulls(100_000_000), 1_000_000)},
    ],
    ids=["runs", "nulls"],
)
def test_values_without_bytes_are_counted_before_one_is_read(tmp_path, columns):
    """Billions of rows in a kilobyte would take all time and memory."""
    batch = pa.record_batch([pa.array(column) for column in columns.values()], names=[*columns])
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), batch.schema) as writer:
        writer.write_batch(batch)
    assert (tmp_path / "a.arrow").stat().st_size < 5_000
    with pytest.raises(DataError, match=r"a\.arrow grows from "):
        open_file(tmp_path / "a.arrow", "arrow", "a.arrow")


@pytest.mark.usefixtures("small")
def test_a_footer_that_names_other_batches_than_the_stream_is_refused(bench, tmp_path):
    """The mark of the stream's end before the batches, which the footer names all the same."""
    data = pa.table({"text": pa.array([f"{number} " + "a" * 100_000 for number in range(ROWS)])})
    file, options = tmp_path / "a.arrow", pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, data.schema, options=options) as writer:
        writer.write_table(data, max_chunksize=ROWS // 2)
    content = file.read_bytes()
    with pa.BufferReader(content) as reader:
        reader.seek(8)
        pa.ipc.read_message(reader)
        first = reader.tell()  # the first batch begins here
    size = struct.unpack("<i", content[-10:-6])[0]
    footer = bytearray(content[-10 - size : -10])
    at = footer.find(struct.pack("<q", first))
    for offset in (at, at + 24):  # of its two blocks
        struct.pack_into("<q", footer, offset, struct.unpack_from("<q", footer, offset)[0] + 8)
    ended = content[:first] + b"\xff\xff\xff\xff\0\0\0\0" + content[first : -10 - size]
    file.write_bytes(ended + bytes(footer) + content[-10:])
    assert pa.ipc.open_file(file).read_all().equals(data)  # what pyarrow alone makes of the file
    assert "a.arrow holds 0 batches, and its end says 2" in failure(bench, DataError, source=str(file))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("form", ["file", "stream", "dictionary"])
def test_compressed_buffers_are_known_before_they_are_decompressed(bench, tmp_path, form):
    texts = pa.array([f"{number} " + "a" * 100_000 for number in range(ROWS)])
    data = pa.table({"text": texts.dictionary_encode() if form == "dictionary" else texts})
    make = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, make(sink, data.schema, options=options) as writer:
        writer.write_table(data)
    error = failure(bench, DataError, source=str(tmp_path / "a.arrow"))
    assert "to more than 20,00" in error  # all, where reading stops after 2 MB
    assert bench.rows(source=str(tmp_path / "a.arrow"), max_growth=100_000).meta["splits"] == {"train": ROWS}


@pytest.mark.usefixtures("small")
def test_keys_that_rows_lack_count(bench, tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "a", "k{n}": 1}}\n' for n in range(1500)))
    assert "a.jsonl grows from " in failure(bench, DataError, source=str(tmp_path / "a.jsonl"))
    rows = open_file(tmp_path / "a.jsonl", "jsonl", "a.jsonl")
    with pytest.raises(DataError, match="to more than 9,0"):  # before an array is made
        next(rows.batches(rows.schema.names))
    assert bench.rows(source=str(tmp_path / "a.jsonl"), text="text").meta["splits"] == {"train": 1500}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("form", ["{}\n", ",{}"])
def test_short_objects_count_by_the_time_that_they_take(bench, tmp_path, form):
    """20 million of them, 60 kB, took a minute."""
    text = form * 200_000
    (tmp_path / "a.json.gz").write_bytes(gzip.compress((text if form[0] == "{" else f"[{text[1:]}]").encode()))
    error = failure(bench, DataError, source=str(tmp_path / "a.json.gz"), format="json")
    assert "a.json.gz grows from " in error and "bytes to more than 2,2" in error
    assert "is empty" in failure(bench, DataError, source=str(tmp_path / "a.json.gz"), max_growth=100_000)


@pytest.mark.usefixtures("small")
def test_a_value_of_a_dictionary_is_decoded_for_few_rows_at_a_time(tmp_path):
    parquet(tmp_path / "a.parquet", dictionary=True)
    before = pa.total_allocated_bytes()
    batch = next(open_file(tmp_path / "a.parquet", "parquet", "a.parquet").batches(["text"]))
    assert pa.total_allocated_bytes() - before < 8 * MB  # of 20
    assert batch.num_rows < ROWS


def made_rows(count: int) -> list[dict]:
    draw = random.Random(1)
    return [
        {
            "text": None if n % 97 == 5 else f"row {draw.randrange(count // 2)} " + "word " * draw.randrange(9),
            "label": draw.choice("abc"),
            "by": draw.randrange(40),
            "list": [{"n": n, "of": "x" * draw.randrange(3)}],
            "left": f"out {n}",
        }
        for n in range(count)
    ]


DRAWS = {
    "all": {},
    "limit": {"limit": {"train": 50, "test": 7}, "shuffle_seed": 3, "split": {"test": 0.2}},
    "stratify": {"stratify": True, "split": {"test": 0.2, "validation": 0.1}, "dedupe": True},
    "by": {"columns": {"by": "by", "list": "list"}, "split_by": "by", "split": {"test": 0.2}},
}


@pytest.mark.parametrize("draw", DRAWS)
def test_rows_read_twice_are_those_of_a_copy(bench, tmp_path, draw, monkeypatch):
    """Parquet and Arrow are read again, JSON lines from their copy: equal bytes, also of what is beside the rows."""
    monkeypatch.setattr("trnflow.tasks.data.load.row_sizes.BATCH_BYTES", 100_000)
    rows, made = made_rows(6_000), {}
    for kind in ("jsonl", "parquet", "arrow"):
        for number, some in enumerate((rows[:4500], rows[4500:])):
            columns = {name: [row[name] for row in some] for name in rows[0]}
            write(tmp_path / kind / f"train-{number}.{kind}", columns)
        settings = {"text": "text", "label": "label", "nulls": "drop", **DRAWS[draw]}
        loaded = bench.rows(source=str(tmp_path / kind), **settings)
        whole = {path.name: path.read_bytes() for path in loaded.path.glob("*.parquet")}
        beside = {
            str(path): pq.read_table(path, columns=["row", "column left"]).to_pylist()
            for path in sorted(loaded.path.rglob("aside/*.parquet"), key=lambda path: path.name)
        }
        made[kind] = (whole, [*beside.values()], loaded.meta)
        assert whole and beside
    assert made["parquet"] == made["jsonl"] == made["arrow"]


class Heard(list):
    """What a stage says, which acts when rows are chosen: after the first reading."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def append(self, event: dict) -> None:
        if "rows dropped" in event.get("info", ""):
            self.act()


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_file_that_changes_between_the_readings_is_named(tmp_path, kind):
    path = write(tmp_path / f"a.{kind}", {"text": [f"row {n}" for n in range(9)]})
    other = write(tmp_path / f"b.{kind}", {"text": [f"other {n}" for n in range(9)]})
    bench = Bench(tmp_path, Heard(lambda: other.replace(path)))
    error = failure(bench, DataError, source=str(path), text="text", limit=5)
    assert f"a.{kind} changed while the run was reading it" in error


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_disk_that_is_almost_full_is_named_before_it_is_full(bench, tmp_path, kind, monkeypatch):
    path = write(tmp_path / f"a.{kind}", {"text": ["a", "b"]})
    monkeypatch.setattr("trnflow.tasks.system.disk.KEPT_FREE", 1 << 60)
    error = failure(bench, MachineError, source=str(path), text="text")
    assert "is almost full: " in error and "free some space" in error


def test_a_file_of_too_many_columns_is_one_line(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("trnflow.tasks.data.load.streams.MOST_COLUMNS", 30)
    names = [f"c{n}" for n in range(31)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({name: "x"}) + "\n" for name in names))
    write(tmp_path / "object.jsonl", {name: ["x"] for name in names})
    for kind in ("csv", "parquet", "arrow"):
        write(tmp_path / f"a.{kind}", {name: ["x"] for name in names})
    for path in sorted(tmp_path.glob("*.*")):
        assert f"{path.name} has 31 columns or more, and may have 30" in failure(bench, DataError, source=str(path))


def test_a_type_of_too_many_levels_is_one_line(bench, tmp_path):
    deep = pa.array([1, 2])
    for _ in range(101):
        deep = pa.ListArray.from_arrays([0, 1, 2], deep)
    pq.write_table(pa.table({"text": ["a", "b"], "deep": deep}), tmp_path / "a.parquet", store_schema=False)
    error = failure(bench, DataError, source=str(tmp_path / "a.parquet"), text="text")
    assert "a.parquet: the column deep is nested deeper than 100 levels" in error


TEXTS = ["a", "long " * 9, None, "words"]
ARRAYS = {
    "text": pa.array(TEXTS),
    "large": pa.array(TEXTS, pa.large_string()),
    "view": pa.array(TEXTS, pa.string_view()),
    "dictionary": pa.array(TEXTS).dictionary_encode(),
    "runs": pc.run_end_encode(pa.array(TEXTS)),
    "json": pa.array(TEXTS, pa.json_()),
    "bytes": pa.array([text and text.encode() for text in TEXTS]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_the_sizes_of_texts_do_not_depend_on_how_they_are_stored(name):
    values = ARRAYS[name]
    assert [*row_sizes(values)] == [4 + 1, 4 + 45, 4 + (name == "dictionary"), 4 + 5]
    assert [*row_sizes(values.slice(1, 2))] == [*row_sizes(values)[1:3]]


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        (pa.array([[1, 2], [], None, [3]]), [20, 4, 4, 12]),
        (pa.array([[1, 2], [], None, [3]], pa.list_view(pa.int64())), [20, 4, 4, 12]),
        (pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int64(), 2)), [20] * 4),
        (pa.array([{"ab": 1}, {"ab": 2}, {"ab": 3}, {"ab": 4}]), [14] * 4),
        (pa.array([[("k", 1)], [], None, [("k", 2), ("long", 3)]], pa.map_(pa.string(), pa.int64())), [17, 4, 4, 33]),
        (pa.array([["aa"], ["b", "aa"], None, []], pa.list_(pa.dictionary(pa.int32(), pa.string()))), [10, 15, 4, 4]),
        (pa.array([True, None, False, True]), [4] * 4),
        (pa.nulls(4), [4] * 4),
    ],
)
def test_the_sizes_of_other_values(values, sizes):
    assert [*row_sizes(values)] == sizes
    assert [*row_sizes(values.slice(1, 2))] == sizes[1:3]


@pytest.mark.usefixtures("small")
def test_batches_are_small_by_what_they_decode_to():
    table = pa.table({"text": repeated(10_000, "x" * 2_000), "n": [*range(10_000)]})
    batches = [*in_batches(table.to_batches())]
    assert all(batch_sizes(batch).sum() <= MB for batch in batches) and len(batches) > 19
    assert [n for batch in batches for n in batch.column("n").to_pylist()] == [*range(10_000)]
    few = [*in_batches(pa.table({"n": [*range(10_000)]}).to_batches(max_chunksize=16))]
    assert [batch.num_rows for batch in few] == [BATCH, BATCH, 10_000 - 2 * BATCH]


def test_a_footer_that_would_take_gigabytes_is_not_parsed(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), file)
    padded = file.read_bytes()[:-8] + bytes(FOOTER)
    file.write_bytes(padded + (len(padded) - 4).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(DataError, match=r"a\.parquet has a footer of 33,\d+,\d+ bytes, and may have 33,554,432"):
        open_parquet(file, "a.parquet")
