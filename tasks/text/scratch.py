"""Splits on their way: read once into an uncompressed scratch file, then written as parquet with the rows that stay.

Memory: a batch, and 8 bytes a row. Disk: the kept columns, uncompressed, until the stage ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.errors import DataError
from tasks.stage import Workdir
from tasks.text.columns import Columns, Nulls, clean_batches
from tasks.text.labels import LabelSet, Seen
from tasks.text.readers import Rows
from tasks.text.selection import row_hashes

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from tasks.text.selection import Hashes, Mask


class ReadSplit(NamedTuple):
    """path: an arrow file of the kept columns and `label` as text; schema: its; hashes: uint64 [rows]; seen: its labels;
    dropped: rows that were left out, by reason."""

    path: Path
    schema: pa.Schema
    hashes: Hashes
    seen: Seen
    dropped: Counter[str]


def read_split(split: str, files: list[Rows], columns: Columns, nulls: Nulls, path: Path, out: Workdir) -> ReadSplit:
    """A split's files, checked, in the scratch file `path`. DataError for an empty split or files that differ in types."""
    import numpy as np
    import pyarrow as pa

    seen, hashes, dropped = Seen(), np.empty(0, dtype=np.uint64), Counter[str]()
    hashed = columns.text or tuple(ours for ours, _ in columns.kept)
    writer, schema, done, kept = None, None, 0, 0
    with pa.OSFile(str(path), "wb") as sink:
        for rows in files:
            for count, batch in clean_batches(rows, columns, split, seen, nulls, dropped):
                schema = schema or batch.schema
                writer = writer or pa.ipc.new_file(sink, schema)
                writer.write_batch(_as_before(batch, schema, rows))
                hashes = _put(hashes, kept, row_hashes(batch.column(name) for name in hashed))
                done, kept = done + count, kept + batch.num_rows
                out.progress(done, done, f"{split} rows")
        if writer is None or schema is None or kept == 0:
            lost = ", ".join(f"{count} {reason}" for reason, count in dropped.items() if count)
            raise DataError(
                f"the split {split} is empty: {files[0].name} holds no rows{f' but those dropped ({lost})' if lost else ''}",
                "give a file with rows",
            )
        writer.close()
    return ReadSplit(path, schema, hashes[:kept], seen, dropped)


def _put(into: Hashes, at: int, values: Hashes) -> Hashes:
    """`into` with `values` from `at` on, made longer by an eighth where it is too short."""
    import numpy as np

    end = at + len(values)
    if end > len(into):
        into = np.concatenate([into, np.empty(end // 8 + len(values), dtype=into.dtype)])
    into[at:end] = values
    return into


def _as_before(batch: pa.RecordBatch, schema: pa.Schema, rows: Rows) -> pa.RecordBatch:
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    try:
        return batch.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        differing = [
            f"{field.name} is {field.type}, before it was {schema.field(field.name).type}"
            for field in batch.schema
            if field.type != schema.field(field.name).type
        ]
        raise DataError(
            f"{rows.name} has other column types than the split's first file: {'; '.join(differing)}",
            "give all files of a split the same columns and types",
        ) from error


def read_back(path: Path) -> Iterator[pa.RecordBatch]:
    """A scratch file's batches, one in memory at a time (mapped, all of them would count as the process's own)."""
    import pyarrow as pa

    with pa.OSFile(str(path)) as opened:
        file = pa.ipc.open_file(opened)
        for index in range(file.num_record_batches):
            yield file.get_batch(index)


def label_ids(read: ReadSplit, labels: LabelSet) -> np.ndarray[Any, np.dtype[np.int32]]:
    """int32 [rows]: the labels of all rows of a scratch file."""
    import numpy as np

    ids = np.empty(len(read.hashes), dtype=np.int32)
    done = 0
    for batch in read_back(read.path):
        ids[done : done + batch.num_rows] = labels.encode(batch.column("label")).to_numpy()
        done += batch.num_rows
    return ids


def kept_rows(read: ReadSplit, keep: Mask, labels: LabelSet | None, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a scratch file that stay, under `schema`: a column that the file lacks is null, labels are ids."""
    import pyarrow as pa

    done = 0
    for batch in read_back(read.path):
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
    return values if values.type == field.type else values.cast(field.type)


def written_schema(schemas: dict[str, pa.Schema], labelled: bool, split: str) -> pa.Schema:
    """All columns of a split's sources, by the sources' order. DataError where two hold a column as different types."""
    import pyarrow as pa

    types: dict[str, tuple[pa.DataType, str]] = {}
    for source, schema in schemas.items():
        for field in schema:
            kind = pa.int64() if labelled and field.name == "label" else field.type
            known, first = types.setdefault(field.name, (kind, source))
            if pa.types.is_null(known):
                types[field.name] = (kind, source)
            elif kind != known and not pa.types.is_null(kind):
                raise DataError(
                    f"split {split}: the column {field.name} is {known} in {first} and {kind} in {source}",
                    "give it one type in the files, or keep other columns (data.columns)",
                )
    return pa.schema([(name, kind) for name, (kind, _) in types.items()])
