"""Read Parquet files a few rows at a time, so that a value that a dictionary repeats does not fill the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trnflow.tasks.data.load.parquet_pages import PADDING, pages
from trnflow.tasks.data.load.row_sizes import ENTRY, in_batches
from trnflow.tasks.data.load.streams import BUFFER, file_errors
from trnflow.tasks.errors import DataError
from trnflow.tasks.sources.data_files import check_growth

LONG = 1000
"""Bytes of a value from which on a column that nothing reads is left in its file."""
FOOTER = 32 << 20
"""Most bytes of a footer, which takes some 25 times as much memory: 300,000 pieces of columns in 26 MB took 0.65 GB."""
READ = 32
"""Rows that are decoded at a time: 0.15 s more for 100,000 reviews than 4,096, and 640 MB at most instead of 80 GB."""
READ_DICTIONARIES = 256
"""As READ, of a table with columns that stay dictionaries: each piece has a copy of those."""
LARGEST = 1 << 29
"""Bytes that the values decoded at a time may have, if none is larger."""
_WIDTHS = {"INT64": 8, "DOUBLE": 8, "INT96": 12}


def open_parquet(
    path: Path, name: str
) -> tuple[pa.Schema, Callable[[list[str]], Iterator[pa.RecordBatch]], frozenset[str]]:
    """Open a file; return its schema, a function from column names to batches, and the columns of long values. Raises
    DataError."""
    _check_footer(path, name)

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        # buffer_size: without it whole columns of a row group, perhaps a million rows, are in memory
        with file_errors(name), pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
            largest = _check_pages(path, name, file.metadata, {*columns})
            kinds = [file.schema_arrow.field(column).type for column in columns]
            # a value may be as large as a page, and stand in each row
            size = max(
                min(READ_DICTIONARIES if any(map(pa.types.is_dictionary, kinds)) else READ, LARGEST // largest), 1
            )
            yield from in_batches(file.iter_batches(size, columns=columns, use_threads=False))

    with pq.ParquetFile(path) as file:
        return file.schema_arrow, batches, _long_columns(file.metadata)


def _check_footer(path: Path, name: str) -> None:
    """Raise DataError for a footer of more than FOOTER bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - 8, 0))
        length, mark = file.read(4), file.read(4)
    footer = int.from_bytes(length, "little")
    if mark == b"PAR1" and FOOTER < footer <= size:
        raise DataError(
            f"{name} has a footer of {footer:,} bytes, and may have {FOOTER:,}",
            "write it with larger row groups, or fewer columns",
        )


def _long_columns(meta: pq.FileMetaData) -> frozenset[str]:
    """Return the columns whose values have more than `LONG` bytes on average."""
    bytes_of = Counter[str]()
    for column in _chunks(meta):
        bytes_of[column.path_in_schema] += column.total_uncompressed_size
    return frozenset(name for name, size in bytes_of.items() if size > LONG * meta.num_rows)


def _check_pages(path: Path, name: str, meta: pq.FileMetaData, columns: set[str]) -> int:
    """Return the bytes of the largest page of columns. Raises DataError if they would grow too much."""
    # a list of a billion equal numbers may be one run, and the footer may say less than the pages
    packed, decoded, largest = path.stat().st_size, 0, 1
    with path.open("rb") as file:
        for chunk in _chunks(meta):
            if _is_of(chunk.path_in_schema, columns):
                width, padding = (
                    _WIDTHS.get(chunk.physical_type, ENTRY),
                    PADDING if "parquet-mr" in (meta.created_by or "") else 0,
                )
                said, unpacked, values = max(chunk.total_uncompressed_size, chunk.num_values * width, 0), 0, 0
                check_growth(name, packed, decoded + said, "name fewer columns (data.columns)")
                for page in pages(file, chunk, name, padding):
                    unpacked, values, largest = (
                        unpacked + page.unpacked,
                        values + page.values,
                        max(largest, page.unpacked),
                    )
                    grown = decoded + max(said, unpacked, values * width)
                    check_growth(name, packed, grown, "name fewer columns (data.columns)")
                decoded += max(said, unpacked, values * width)
    return largest


def _is_of(path: str, columns: set[str]) -> bool:
    """Return whether a leaf of the schema belongs to one of the columns, whose names may have dots."""
    parts = path.split(".")
    return any(".".join(parts[:count]) in columns for count in range(1, len(parts) + 1))


def _chunks(meta: pq.FileMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    for group in map(meta.row_group, range(meta.num_row_groups)):
        yield from map(group.column, range(group.num_columns))
