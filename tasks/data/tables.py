"""Write rows to a parquet file whose bytes depend on the rows alone; read a range of rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.abc import MetaPathFinder
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.system.json_numbers import loads

if TYPE_CHECKING:
    import pyarrow as pa

    from trnflow.tasks.kinds.kind import Kind

ROW_GROUP = 8192
_WRITTEN = " (as written)"


def written_name(column: str) -> str:
    """Return the name of the column of texts beside a column of floats, where a JSON file writes its numbers otherwise."""
    return f"{column}{_WRITTEN}"


def rows_of(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows of load_data as dicts, in which numbers have the texts of their file."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for column in [name for name in table.schema.names if written_name(name) in table.schema.names]:
        for row in rows:
            text = row.pop(written_name(column))
            row[column] = row[column] if text is None else loads(text)
    return rows


def label_type(kind: Kind) -> pa.DataType:
    """Return the type of a row's target in the files of `format_prompts`."""
    import pyarrow as pa

    if kind.per_position:
        return pa.list_(pa.struct([(name, pa.int32()) for name in ("start", "end", "label")]))
    return pa.list_(pa.float32()) if kind.reads_targets else pa.int64()


def read_rows(path: Path, first: int, count: int, columns: list[str] | None = None) -> pa.Table:
    """Read `count` rows from row `first` on, fewer at the file's end; only their row groups are read. columns: None for
    all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, pre_buffer=False) as file:  # with pre_buffer, everything read stays in memory
        sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
        ends = list(accumulate(sizes))
        groups = [n for n, end in enumerate(ends) if end > first and end - sizes[n] < first + count]
        if not groups:
            return pa.Table.from_batches([], file.schema_arrow)
        table = file.read_row_groups(groups, columns)
    return table.slice(first - (ends[groups[0]] - sizes[groups[0]]), count).combine_chunks()


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError


def spare_pandas() -> None:
    """Let pyarrow convert lists without pandas, which takes 0.2 s to import, in a process whose code uses none."""
    import pyarrow as pa

    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas())
        pa.array([])  # it looks for pandas once
        del sys.meta_path[0]


def write_rows(tables: Iterable[pa.Table], schema: pa.Schema, to: Path, progress: Callable[[int], None]) -> int:
    """Write tables to a new parquet file (zstd) and return the number of rows. progress: gets the rows so far."""
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(to, schema, compression="zstd") as writer:
        # row groups of one size: equal rows give equal bytes, however they are divided
        for table in regrouped(tables, schema, ROW_GROUP):
            writer.write_table(table)
            count += table.num_rows
            progress(count)
    return count


def regrouped(tables: Iterable[pa.Table], schema: pa.Schema, size: int) -> Iterator[pa.Table]:
    """Yield the rows in tables of `size` rows; the last may be shorter."""
    import pyarrow as pa

    waiting, count = [schema.empty_table()], 0
    for table in tables:
        waiting.append(table)
        count += table.num_rows
        if count >= size:
            whole = pa.concat_tables(waiting)
            for start in range(0, count - count % size, size):
                yield whole.slice(start, size).combine_chunks()
            count %= size
            waiting = [whole.slice(whole.num_rows - count).combine_chunks()]
    if count:
        yield pa.concat_tables(waiting).combine_chunks()
