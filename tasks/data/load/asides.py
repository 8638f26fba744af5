"""Where each row stands in the user's files, and what it has in columns that no setting names: for people who look at it.

`load_data` writes it to `aside/<split>.parquet`, which no key below counts: `file`, `row` (from 1) and `column <name>` of each
left-out column, as text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trnflow.tasks.data.load.column_types import WrittenNumbers
from trnflow.tasks.data.load.readers import RowReader
from trnflow.tasks.errors import DataError

FILE, ROW, COLUMN = "file", "row", "column "
MARK = "\0"
"""Begins the names of these columns as long as they are beside those of the rows, which never hold it."""
MOST, LONGEST = 20, 200
"""Left-out columns of a source that are kept, and characters of their values."""

_PLAIN = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean,
    pa.types.is_decimal, pa.types.is_temporal, pa.types.is_dictionary,
)  # fmt: skip


def kept_aside(left_out: Collection[str], files: Sequence[RowReader]) -> list[str]:
    """Return which of the left-out columns are short enough to be kept: no lists, objects, bytes or documents."""
    there = [(rows, {*rows.schema.names}) for rows in files]
    plain = (
        name
        for name in left_out
        if all(_is_plain(rows, name) for rows, names in there if name in names) and "\0" not in name
    )
    return [*islice(plain, MOST)]


def _is_plain(rows: RowReader, name: str) -> bool:
    kind = (rows.given or rows).schema.field(name).type  # bytes would be text
    return name not in rows.long and (isinstance(kind, WrittenNumbers) or any(is_kind(kind) for is_kind in _PLAIN))


def aside_schema(names: Collection[str]) -> pa.Schema:
    """Return the schema of the columns beside the rows. names: of left-out columns."""
    fields = [(FILE, pa.string()), (ROW, pa.int64()), *((f"{COLUMN}{name}", pa.string()) for name in names)]
    return pa.schema([(f"{MARK}{name}", kind) for name, kind in fields])


def batches_with(rows: RowReader, read: list[str], names: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Yield a file's batches of the columns `read`, as far as they can be read with the left-out columns `names`."""
    there, done = [name for name in names if rows.schema.get_field_index(name) >= 0], 0
    if there:
        try:
            for batch in rows.batches([*read, *there]):
                yield batch
                done += batch.num_rows
            return
        except DataError:
            pass  # a column that nothing reads stops nothing; an error of the others is raised below
    for batch in rows.batches(read):  # with fewer columns a batch may have more rows
        if done < batch.num_rows:
            yield batch.slice(done)
        done = max(0, done - batch.num_rows)


def with_asides(
    batch: pa.RecordBatch, given: pa.RecordBatch, file: str, numbers: NDArray[np.int64], names: Sequence[str]
) -> pa.RecordBatch:
    """Return rows with the columns beside them. given: the same rows as they were read; numbers: theirs in the file."""
    schema = aside_schema(names)
    arrays = [pa.repeat(file, batch.num_rows), pa.array(numbers)]
    arrays += [_texts(given, name) for name in names]
    return pa.RecordBatch.from_arrays([*batch.columns, *arrays], schema=pa.schema([*batch.schema, *schema]))


def _texts(given: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column as texts of at most `LONGEST` characters and one more, which shows that there are more."""
    if name in given.schema.names:
        values = given.column(name)
        try:
            values = values.storage if isinstance(values.type, WrittenNumbers) else pc.cast(values, pa.string())
            return pc.utf8_slice_codeunits(values, 0, LONGEST + 1)
        except pa.ArrowException:
            pass  # broken text
    return pa.nulls(given.num_rows, pa.string())


def unmarked(schema: pa.Schema) -> pa.Schema:
    """Return the schema of `aside_schema` as its file has it."""
    return pa.schema([field.with_name(field.name.removeprefix(MARK)) for field in schema])


def split_off(tables: Iterable[pa.Table], copy: Callable[[pa.RecordBatch], None]) -> Iterator[pa.Table]:
    """Yield the rows alone, and give what is beside them to `copy`."""
    for table in tables:
        marked = [name for name in table.column_names if name.startswith(MARK)]
        beside = table.select(marked).rename_columns([name.removeprefix(MARK) for name in marked])
        for batch in beside.to_batches():
            copy(batch)
        yield table.drop_columns(marked)
