"""Read rows from parquet, csv, tsv, json lines, arrow, CoNLL and text files, in batches of the columns asked for.

Takes one batch of memory (4,096 rows), but the whole of a JSON array. Columns of csv and tsv are strings.
"""

from __future__ import annotations

import contextlib
import csv
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from trnflow.tasks.data.load.class_names import class_names, named
from trnflow.tasks.data.load.conll import TAGS, WORDS, sentences
from trnflow.tasks.data.load.json_rows import open_json
from trnflow.tasks.data.load.streams import BUFFER, file_errors, lines, max_cell, open_text, too_long, whole_lines
from trnflow.tasks.errors import CodeError, DataError

BATCH = 4096


@dataclass(frozen=True)
class RowReader:
    """An opened file whose rows are not read yet. batches: column names -> batches of rows with these columns."""

    name: str
    schema: pa.Schema
    batches: Callable[[list[str]], Iterator[pa.RecordBatch]]


Reader = Callable[[Path, str], RowReader]
Function = TypeVar("Function", bound=Reader)
READERS: dict[str, Reader] = {}
"""{format: opens a file of it, given its path and its name in errors}."""


def reads(kind: str) -> Callable[[Function], Function]:
    """Return a decorator that makes a function the reader of a format. Raises CodeError for a second one."""

    def enter(function: Function) -> Function:
        other = READERS.setdefault(kind, function)
        if other is not function:
            places = " and ".join(
                f"{reader.__code__.co_filename}:{reader.__code__.co_firstlineno}" for reader in (other, function)
            )
            raise CodeError(f"the format {kind} has two readers: {places}", "remove one")
        return function

    return enter


def open_file(path: Path, kind: str, name: str) -> RowReader:
    """Open a data file of format `kind` without reading rows. Raises DataError."""
    with file_errors(name):
        rows = READERS[kind](path, name)
    twice = [column for column, count in Counter(rows.schema.names).items() if count > 1]
    if twice:
        raise DataError(f"{name} has two columns named {twice[0]}", "rename one in the file")
    return with_class_names(rows)


def with_class_names(rows: RowReader) -> RowReader:
    """Return rows whose lists of class numbers hold the classes' names, where the file has them."""
    names = class_names(rows.schema)
    if not names:
        return rows
    fields = [field.with_type(pa.list_(pa.string())) if field.name in names else field for field in rows.schema]

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        before = 0
        for batch in rows.batches(columns):
            arrays = [
                named(array, names[column], f"{rows.name} row {{}}: {column}", before) if column in names else array
                for column, array in zip(columns, batch.columns, strict=True)
            ]
            before += batch.num_rows
            yield pa.record_batch(arrays, names=columns)

    return RowReader(rows.name, pa.schema(fields, rows.schema.metadata), batches)


def open_table(table: pa.Table, name: str) -> RowReader:
    """Return a table in memory as `RowReader`."""
    return RowReader(name, table.schema, lambda columns: iter(table.select(columns).to_batches(max_chunksize=BATCH)))


@reads("parquet")
def _parquet(path: Path, name: str) -> RowReader:
    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        # buffer_size: without it whole columns of a row group, perhaps a million rows, are in memory
        with file_errors(name), pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
            yield from file.iter_batches(BATCH, columns=columns, use_threads=False)

    with pq.ParquetFile(path) as file:
        return RowReader(name, file.schema_arrow, batches)


@reads("arrow")
def _arrow(path: Path, name: str) -> RowReader:
    """Open an Arrow IPC file, or a stream as `datasets` writes under the same extension."""
    with path.open("rb") as file:
        is_file = file.read(6) == b"ARROW1"
    mapped = pa.memory_map(str(path))
    return open_table((pa.ipc.open_file if is_file else pa.ipc.open_stream)(mapped).read_all(), name)


@reads("jsonl")
def _json(path: Path, name: str) -> RowReader:
    return RowReader(name, *open_json(path, name, BATCH))


@reads("txt")
def _text(path: Path, name: str) -> RowReader:
    """One row for each line that is not blank, in the column `text`."""

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        texts = (line for _, line in lines(path, name) if line)
        while batch := list(islice(texts, BATCH)):
            yield pa.record_batch([pa.array(batch, pa.string())] * len(columns), names=columns)

    return RowReader(name, pa.schema([("text", pa.string())]), batches)


@reads("conll")
def _conll(path: Path, name: str) -> RowReader:
    """One row for each sentence, with the lists `words` and `tags`."""

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        rows = sentences(path, name)
        while batch := list(islice(rows, BATCH)):
            lists = dict(zip((WORDS, TAGS), zip(*batch, strict=True), strict=True))
            yield pa.record_batch([pa.array(lists[column], pa.list_(pa.string())) for column in columns], names=columns)

    return RowReader(name, pa.schema([(column, pa.list_(pa.string())) for column in (WORDS, TAGS)]), batches)


@reads("tsv")
def _tsv(path: Path, name: str) -> RowReader:
    return _csv(path, name, "\t;|")


@reads("csv")
def _csv(path: Path, name: str, delimiters: str = ",;|") -> RowReader:
    delimiter = _delimiter_of(path, name, delimiters)
    with contextlib.closing(_records(path, name, delimiter)) as records:
        header = next(records, [])

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        places = [header.index(column) for column in columns]
        records = islice(_records(path, name, delimiter), 1, None)
        while batch := list(islice(records, BATCH)):
            cells = list(zip(*batch, strict=True))
            yield pa.record_batch([pa.array(cells[place], pa.string()) for place in places], names=columns)

    return RowReader(name, pa.schema([(column, pa.string()) for column in header]), batches)


def _delimiter_of(path: Path, name: str, delimiters: str) -> str:
    """Return the first that divides the first line, since spreadsheets write `;` where a comma is the decimal point."""
    csv.field_size_limit(max_cell())  # for the whole process
    with open_text(path, name) as text:
        header = next((line for line in whole_lines(text, name) if line.strip()), "")
    with contextlib.suppress(csv.Error):  # `_records` names the line
        for delimiter in delimiters:
            names = next(csv.reader([header], delimiter=delimiter))
            # with another delimiter a quoted name that holds it is cut, quotes and all
            if len(names) > 1 and not any('"' in name for name in names):
                return delimiter
    return delimiters[0]


def _records(path: Path, name: str, delimiter: str) -> Generator[list[str]]:
    """Yield the header's cells, then each row's. Raises DataError with the line."""
    width, line = 0, 1
    with open_text(path, name) as text:
        reader = csv.reader(whole_lines(text, name), delimiter=delimiter, strict=True)
        try:
            for cells in reader:
                blank = len(cells) < 2 and not "".join(cells).strip()
                # such a record may contain the records after it
                if len(cells) != width and not blank:
                    if width:
                        raise DataError(
                            f"{name} line {line} has {len(cells)} cell{'s' * (len(cells) != 1)}, the header {width}",
                            "repair the line: a cell that holds a delimiter or a line break is quoted",
                        )
                    width = len(cells)
                if width and len(cells) == width:
                    yield cells
                line = reader.line_num + 1
        except csv.Error as error:
            if "field limit" in str(error):
                raise too_long(f"a cell of {name} line {line}") from error
            raise DataError(
                f"{name} line {line} is not csv: {error}",
                "quote the whole cell and double the quotes inside it, or give json lines or parquet",
            ) from error
