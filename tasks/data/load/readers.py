"""Read rows from parquet, csv, tsv, json lines, arrow, CoNLL and text files, in batches of the columns asked for.

Takes one batch of memory: 4,096 rows, or fewer that have 64 MiB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from trnflow.tasks.data.load.arrow_rows import open_arrow
from trnflow.tasks.data.load.class_names import class_names, named
from trnflow.tasks.data.load.column_types import plain_type, to_type
from trnflow.tasks.data.load.conll import TAGS, WORDS, sentences
from trnflow.tasks.data.load.csv_rows import open_csv
from trnflow.tasks.data.load.json_rows import open_json
from trnflow.tasks.data.load.parquet_rows import open_parquet
from trnflow.tasks.data.load.row_sizes import BATCH, batch_sizes, inner_types
from trnflow.tasks.data.load.streams import check_width, file_errors, grouped, lines
from trnflow.tasks.errors import CodeError, DataError
from trnflow.tasks.sources.data_files import check_growth

MOST_LEVELS = 100
"""Lists and objects within each other."""
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
    is_binary: bool = False
    size: int = 0


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
        rows = replace(READERS[kind](path, name), size=path.stat().st_size)
    check_width(len(rows.schema), name)
    _check_depth(rows)
    twice = [column for column, count in Counter(rows.schema.names).items() if count > 1]
    if twice:
        raise DataError(f"{name} has two columns named {twice[0]}", "rename one in the file")
    return made_plain(rows)


def _check_depth(rows: RowReader) -> None:
    """Raise DataError for a column whose type is nested deeper than MOST_LEVELS: the functions below call themselves."""
    for field in rows.schema:
        kinds, levels = inner_types(field.type), 0
        while kinds and levels < MOST_LEVELS:
            kinds, levels = [inner for kind in kinds for inner in inner_types(kind)], levels + 1
        if kinds:
            raise DataError(
                f"{rows.name}: the column {field.name} is nested deeper than {MOST_LEVELS} levels",
                "write it as JSON text",
            )


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


def bounded(rows: RowReader) -> RowReader:
    """Return rows whose reading raises DataError when they grow more than `data.max_growth` allows."""

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        decoded = 0
        for batch in rows.batches(columns):
            decoded += int(batch_sizes(batch).sum())
            check_growth(rows.name, rows.size, decoded, "name fewer columns (data.columns)")
            yield batch

    return replace(rows, batches=batches) if rows.size else rows


def open_table(table: pa.Table, name: str) -> RowReader:
    """Return a table in memory as `RowReader`."""
    return RowReader(name, table.schema, lambda columns: iter(table.select(columns).to_batches(max_chunksize=BATCH)))


@reads("parquet")
def _parquet(path: Path, name: str) -> RowReader:
    schema, batches, long = open_parquet(path, name)
    return RowReader(name, schema, batches, long=long, is_binary=True)


@reads("arrow")
def _arrow(path: Path, name: str) -> RowReader:
    return RowReader(name, *open_arrow(path, name), is_binary=True)


@reads("jsonl")
def _json(path: Path, name: str) -> RowReader:
    return RowReader(name, *open_json(path, name))


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
        for batch in grouped(((text, len(text)) for text in texts()), 1):
            yield pa.record_batch([pa.array(batch, pa.string())] * len(columns), names=columns)

    def remarks() -> list[str]:
        return [f"{name}: {blank:,} blank line{'s' * (blank > 1)} left out"] if blank else []

    return RowReader(name, pa.schema([("text", pa.string())]), batches, remarks)


@reads("conll")
def _conll(path: Path, name: str) -> RowReader:
    """One row for each sentence, with the lists `words` and `tags`."""

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        for batch in grouped(((row, sum(map(len, row[0]))) for row in sentences(path, name)), 1):
            lists = dict(zip((WORDS, TAGS), zip(*batch, strict=True), strict=True))
            yield pa.record_batch([pa.array(lists[column], pa.list_(pa.string())) for column in columns], names=columns)

    return RowReader(name, pa.schema([(column, pa.list_(pa.string())) for column in (WORDS, TAGS)]), batches)


@reads("tsv")
def _tsv(path: Path, name: str) -> RowReader:
    return RowReader(name, *open_csv(path, name, "\t;|"))


@reads("csv")
def _csv(path: Path, name: str) -> RowReader:
    return RowReader(name, *open_csv(path, name, ",;|"))
