"""Rows as parquet: written so that the bytes don't tell how they came, read by their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 8192


def read_rows(path: Path, first: int, count: int) -> pa.Table:
    """Rows `first`..`first + count` of a parquet file; only the row groups they stand in are read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, pre_buffer=False) as file:  # else all that was read is held
        sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
        ends = list(accumulate(sizes))
        groups = [n for n, end in enumerate(ends) if end > first and end - sizes[n] < first + count]
        if not groups:
            return pa.Table.from_batches([], file.schema_arrow)
        table = file.read_row_groups(groups)
    return table.slice(first - (ends[groups[0]] - sizes[groups[0]]), count).combine_chunks()


def write_rows(tables: Iterable[pa.Table], schema: pa.Schema, to: Path, tell: Callable[[int], None]) -> int:
    """Rows as parquet (zstd, row groups of 8,192): the same rows, the same bytes. How many; `tell` hears it by and by."""
    import pyarrow.parquet as pq

    done = 0
    with pq.ParquetWriter(to, schema, compression="zstd") as writer:
        for table in regrouped(tables, schema, ROW_GROUP):
            writer.write_table(table)
            done += table.num_rows
            tell(done)
    return done


def regrouped(tables: Iterable[pa.Table], schema: pa.Schema, size: int) -> Iterator[pa.Table]:
    """The same rows in tables of `size` rows, so that the bytes don't tell how the source was cut."""
    import pyarrow as pa

    held, count = [schema.empty_table()], 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        if count >= size:
            whole = pa.concat_tables(held)
            for start in range(0, count - count % size, size):
                yield whole.slice(start, size).combine_chunks()
            count %= size
            held = [whole.slice(whole.num_rows - count).combine_chunks()]
    if count:
        yield pa.concat_tables(held).combine_chunks()
