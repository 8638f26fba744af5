"""Read rows from parquet, csv, tsv, json lines, arrow, CoNLL and text files, in batches of the columns asked for.

Takes one batch of memory (4,096 rows), but the whole of a JSON array.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from trnflow.tasks.data.load.class_names import class_names, named
from trnflow.tasks.data.load.column_types import plain_type, to_type
from trnflow.tasks.data.load.conll import TAGS, WORDS, sentences
from trnflow.tasks.data.load.csv_rows import open_csv
from trnflow.tasks.data.load.json_rows import open_json
from trnflow.tasks.data.load.streams import BUFFER, file_errors, lines
from trnflow.tasks.errors import CodeError, DataError

BATCH = 4096
LONG = 1000
"""Bytes of a value from which on a column that nothing reads is left in its file."""
PLAIN = (pa.string(), pa.float64())
"""Types that others become as soon as they are read."""


@dataclass(frozen=True)
class RowReader:
    """An opened file whose rows are not read yet.

    Attributes:
        batches: Column names -> batches of rows with these columns.
        given: The same rows with the types that the file has, where `schema` has what they become.
        long: Columns of long values, whose reading would take much memory.
        remarks: What users must know of how the rows read so far were read.
    """

    name: str
    schema: pa.Schema
    batches: Callable[[list[str]], Iterator[pa.RecordBatch]]
    remarks: Callable[[], list[str]] = list
    given: RowReader | None = None
    long: frozenset[str] = frozenset()


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
    return made_plain(rows)


def made_plain(rows: RowReader) -> RowReader:
    """Return rows whose lists of class numbers hold the classes' names, where the file has them, whose dates, times and bytes
    are texts, and whose floats have 64 bits."""
    names = class_names(rows.schema)
    kinds = {field.name: plain_type(field.type) for field in rows.schema}
    kinds = {name: kind for name, kind in kinds.items() if kind in PLAIN and kind != rows.schema.field(name).type}
    if not names and not kinds:
        return rows
    kinds |= dict.fromkeys(names, pa.list_(pa.string()))
    fields = [field.with_type(kinds.get(field.name, field.type)) for field in rows.schema]

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        before = 0
        for batch in rows.batches(columns):
            arrays = [
                named(array, names[column], f"{rows.name} row {{}}: {column}", before)
                if column in names
                else to_type(array, kinds[column], column, rows.name, before)
                if column in kinds
                else array
                for column, array in zip(columns, batch.columns, strict=True)
            ]
            before += batch.num_rows
            yield pa.record_batch(arrays, names=columns)

    return replace(rows, schema=pa.schema(fields, rows.schema.metadata), batches=batches, given=rows)


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
        return RowReader(name, file.schema_arrow, batches, long=_long_columns(file.metadata))


def _long_columns(meta: pq.FileMetaData) -> frozenset[str]:
    """Return the columns of a Parquet file whose values have more than `LONG` bytes on average."""
    bytes_of = Counter[str]()
    for group in map(meta.row_group, range(meta.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            bytes_of[column.path_in_schema] += column.total_uncompressed_size
    return frozenset(name for name, size in bytes_of.items() if size > LONG * meta.num_rows)


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
    blank = 0

    def texts() -> Iterator[str]:
        nonlocal blank
        blank = 0
        for _, line in lines(path, name):
            if line and not line.isspace():
                yield line
            else:
                blank += 1

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        rows = texts()
        while batch := list(islice(rows, BATCH)):
            yield pa.record_batch([pa.array(batch, pa.string())] * len(columns), names=columns)

    def remarks() -> list[str]:
        return [f"{name}: {blank:,} blank line{'s' * (blank > 1)} left out"] if blank else []

    return RowReader(name, pa.schema([("text", pa.string())]), batches, remarks)


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
    return RowReader(name, *open_csv(path, name, "\t;|", BATCH))


@reads("csv")
def _csv(path: Path, name: str) -> RowReader:
    return RowReader(name, *open_csv(path, name, ",;|", BATCH))
