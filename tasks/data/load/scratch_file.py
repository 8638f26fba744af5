"""Copy a split into an uncompressed Arrow file (the *scratch file*) in the stage's folder for temporary files, and read
chosen rows of that file later.

The rows are read twice, because duplicates and samples can be chosen only after all rows have been read.
Memory used: one batch of rows, and 8 bytes for each row. Disk used until the stage ends: the chosen columns,
uncompressed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.data.load.column_types import common_type, is_nested, to_type
from trnflow.tasks.data.load.columns import Columns, Nulls, clean_batches, united
from trnflow.tasks.data.load.labels import LabelSet, SeenLabels
from trnflow.tasks.data.load.readers import Rows
from trnflow.tasks.data.load.selection import row_hashes
from trnflow.tasks.errors import DataError
from trnflow.tasks.stage import Workdir

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from trnflow.tasks.data.load.selection import Hashes, Mask


class ReadSplit(NamedTuple):
    """One split of one source (data set), copied into a scratch file: a temporary Arrow file of all its rows, from
    which the stage later picks the rows to keep.

    Attributes:
        path: the Arrow file, with the columns to write and, where there is a label, `label` as text.
        schema: the schema of this file.
        hashes: uint64 [rows], a hash of each row's text.
        seen: the labels that occur in the split.
        dropped: {reason: number of rows left out while reading}, with the reasons "null" (text or label missing) and
            "empty" (text blank).
    """

    path: Path
    schema: pa.Schema
    hashes: Hashes
    seen: SeenLabels
    dropped: Counter[str]


def hashed_columns(columns: Columns) -> tuple[str, ...]:
    """Return the names of the columns whose values are hashed to find rows with equal text: the text columns, or all
    columns that are written if no text column is named."""
    return columns.text or tuple(ours for ours, _ in columns.kept)


def read_split(split: str, files: list[Rows], columns: Columns, nulls: Nulls, path: Path, out: Workdir) -> ReadSplit:
    """Read the files of a split of one source (data set), check their rows and write the rows to a scratch file: a
    temporary Arrow file, from which the stage later picks the rows to keep.

    Args:
        split: the split's name, for errors.
        files: the files of the split, at least one.
        columns: the columns to read.
        nulls: `data.nulls`, whether rows without text or label are an error or are dropped.
        path: the new scratch file.
        out: shows the progress.

    Raises DataError for a row that can't be used, for files whose types differ, and for an empty split.
    """
    import numpy as np
    import pyarrow as pa

    seen, hashes, dropped = SeenLabels(), np.empty(0, dtype=np.uint64), Counter[str]()
    hashed = hashed_columns(columns)
    schema, done, kept = united(files, columns), 0, 0
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for rows in files:
            for count, batch in clean_batches(rows, columns, schema, split, seen, nulls, dropped):
                writer.write_batch(batch)
                hashes = _appended(hashes, kept, row_hashes(batch.column(name) for name in hashed))
                done, kept = done + count, kept + batch.num_rows
                out.progress(done, done, f"{split} rows")
    if kept == 0:
        lost = ", ".join(f"{count} {reason}" for reason, count in dropped.items() if count)
        raise DataError(
            f"the split {split} is empty: {files[0].name} holds no rows{f' but those dropped ({lost})' if lost else ''}",
            "give a file with rows",
        )
    return ReadSplit(path, schema, hashes[:kept], seen, dropped)


def _appended(into: Hashes, at: int, values: Hashes) -> Hashes:
    """Write `values` into `into` at index `at`. Returns `into`, or a longer copy where `into` is too short."""
    import numpy as np

    end = at + len(values)
    if end > len(into):
        into = np.concatenate([into, np.empty(end // 8 + len(values), dtype=into.dtype)])
    into[at:end] = values
    return into


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the batches of rows of a scratch file (a temporary Arrow file of a split's rows), with one in memory at a
    time. The file is not memory-mapped, because mapped pages would count as memory of this process."""
    import pyarrow as pa

    with pa.OSFile(str(path)) as opened:
        file = pa.ipc.open_file(opened)
        for index in range(file.num_record_batches):
            yield file.get_batch(index)


def label_ids(read: ReadSplit, labels: LabelSet) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the label id of every row in a scratch file (a temporary Arrow file of a split's rows), int32 [rows].
    labels: the labels of the source (data set) with their ids."""
    import numpy as np

    ids = np.empty(len(read.hashes), dtype=np.int32)
    done = 0
    for batch in read_batches(read.path):
        ids[done : done + batch.num_rows] = labels.encode(batch.column("label")).to_numpy()
        done += batch.num_rows
    return ids


def kept_rows(read: ReadSplit, keep: Mask, labels: LabelSet | None, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a scratch file (a temporary Arrow file of a split's rows) that a mask picks, batch by batch, as
    tables with the given schema.

    Args:
        read: the split in the scratch file.
        keep: bool [rows], True for the rows to yield.
        labels: converts label texts to ids, or None where there is no label.
        schema: the schema of the tables; columns that the file lacks are filled with null.
    """
    import pyarrow as pa

    done = 0
    for batch in read_batches(read.path):
        rows = batch.filter(pa.array(keep[done : done + batch.num_rows]))
        done += batch.num_rows
        yield pa.Table.from_arrays([_column(rows, field, labels) for field in schema], schema=schema)


def _column(rows: pa.RecordBatch, field: pa.Field, labels: LabelSet | None) -> pa.Array:
    import pyarrow as pa

    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    values = rows.column(field.name)
    if labels and field.name == "label":
        return labels.encode(values)
    return to_type(values, field.type, field.name, "the rows read", 0)


def common_schema(schemas: dict[str, pa.Schema], nested: Collection[str], labelled: bool, split: str) -> pa.Schema:
    """Return one Arrow schema for a split that comes from several sources (data sets): the columns of all sources, in
    the order of the sources. Each column has a type that holds the values of all sources; a column that is null
    everywhere is text.

    Args:
        schemas: {source: its schema}.
        nested: columns that hold lists or objects in any split.
        labelled: whether to add the column `label`.
        split: the split's name, for errors.

    Raises DataError for a column whose types conflict, such as text and number.
    """
    import pyarrow as pa

    types: dict[str, tuple[pa.DataType, str]] = {}
    for source, schema in schemas.items():
        for field in schema:
            kind = pa.int64() if labelled and field.name == "label" else field.type
            known, first = types.setdefault(field.name, (kind, source))
            both = common_type(known, kind)
            if both is None:
                raise DataError(
                    f"split {split}: the column {field.name} is {known} in {first} and {kind} in {source}",
                    "give it one type in the files, or keep other columns (data.columns)",
                )
            types[field.name] = (both, source if pa.types.is_null(known) else first)
    names = {name: pa.json_() if name in nested else kind for name, (kind, _) in types.items()}
    return pa.schema([(name, pa.string() if pa.types.is_null(kind) else kind) for name, kind in names.items()])


def nested_columns(schemas: Iterable[pa.Schema]) -> list[str]:
    """List the columns that hold lists or objects in any of the schemas, sorted."""
    return sorted({field.name for schema in schemas for field in schema if is_nested(field.type)})
