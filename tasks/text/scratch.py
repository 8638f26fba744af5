"""Splits on their way: read once into an uncompressed scratch file, then written as parquet with the rows that stay.

Memory: one batch and 8 bytes a row. Disk: the kept columns, uncompressed, until the stage ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tasks.errors import DataError
from tasks.stage import Workdir
from tasks.text.columns import Columns, clean_batches
from tasks.text.labels import LabelSet, Seen
from tasks.text.readers import Rows
from tasks.text.selection import row_hashes

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.text.selection import Hashes, Mask

ROW_GROUP = 8192


class ReadSplit(NamedTuple):
    """path: an arrow file of the kept columns and `label` as text; hashes: uint64 [rows]; seen: its labels."""

    path: Path
    hashes: Hashes
    seen: Seen


def read_split(split: str, files: list[Rows], columns: Columns, out: Workdir) -> ReadSplit:
    """A split's files, checked, in `out.scratch`. DataError for an empty split or files that differ in their types."""
    import numpy as np
    import pyarrow as pa

    path, seen, hashes = out.scratch / f"{split}.arrow", Seen(), []
    hashed = columns.text or tuple(ours for ours, _ in columns.kept)
    writer, schema, done = None, None, 0
    with pa.OSFile(str(path), "wb") as sink:
        for rows in files:
            for batch in clean_batches(rows, columns, split, seen):
                schema = schema or batch.schema
                writer = writer or pa.ipc.new_file(sink, schema)
                writer.write_batch(_as_before(batch, schema, rows))
                hashes.append(row_hashes(batch.column(name) for name in hashed))
                done += batch.num_rows
                out.progress(done, done, f"{split} rows")
        if writer is None or done == 0:
            raise DataError(f"the split {split} is empty: {files[0].name} holds no rows", "give a file with rows")
        writer.close()
    return ReadSplit(path, np.concatenate(hashes), seen)


def _as_before(batch: pa.RecordBatch, schema: pa.Schema, rows: Rows) -> pa.RecordBatch:
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    try:
        return batch.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"{rows.name} has other column types than the split's first file: {' '.join(str(error).split())[:200]}",
            "give all files of a split the same columns and types",
        ) from error


def write_split(path: Path, keep: Mask, labels: LabelSet | None, to: Path) -> None:
    """The kept rows of a scratch file as parquet (zstd, row groups of 8,192): the same rows, the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pa.memory_map(str(path)) as mapped:
        file = pa.ipc.open_file(mapped)
        schema = _written_schema(file.schema, labels)
        with pq.ParquetWriter(to, schema, compression="zstd") as writer:
            for table in _regrouped(_kept(file, keep, schema, labels), schema):
                writer.write_table(table)


def _written_schema(schema: pa.Schema, labels: LabelSet | None) -> pa.Schema:
    import pyarrow as pa

    types = [pa.int64() if labels and field.name == "label" else field.type for field in schema]
    return pa.schema(list(zip(schema.names, types, strict=True)))


def _kept(file: pa.RecordBatchFileReader, keep: Mask, schema: pa.Schema, labels: LabelSet | None) -> Iterator[pa.Table]:
    import pyarrow as pa

    done = 0
    for index in range(file.num_record_batches):
        batch = file.get_batch(index)
        rows = batch.filter(pa.array(keep[done : done + batch.num_rows]))
        done += batch.num_rows
        columns = rows.columns
        if labels:
            columns[rows.schema.get_field_index("label")] = labels.encode(rows.column("label"))
        yield pa.Table.from_arrays(columns, schema=schema)


def _regrouped(tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """The same rows in tables of ROW_GROUP rows, so that the bytes don't tell how the source was cut."""
    import pyarrow as pa

    held = schema.empty_table()
    for table in tables:
        held = pa.concat_tables([held, table])
        while held.num_rows >= ROW_GROUP:
            yield held.slice(0, ROW_GROUP).combine_chunks()
            held = held.slice(ROW_GROUP).combine_chunks()
    if held.num_rows:
        yield held.combine_chunks()
