"""Read a split twice: a first time to check and hash all rows, then those that were chosen by the hashes.

Rows that were parsed are read from a copy, an uncompressed Arrow file, the *scratch file*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from trnflow.tasks.data.load.asides import aside_schema
from trnflow.tasks.data.load.column_types import common_type, is_nested, to_type
from trnflow.tasks.data.load.columns import Columns, LongestRow, clean_batches, united
from trnflow.tasks.data.load.config import Nulls
from trnflow.tasks.data.load.garbled import GarbledTexts
from trnflow.tasks.data.load.labels import LabelSet, SeenLabels
from trnflow.tasks.data.load.readers import RowReader, bounded
from trnflow.tasks.data.load.selection import Hashes, Mask, narrowed, row_hashes
from trnflow.tasks.data.tables import written_name
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.stage import Workdir
from trnflow.tasks.system.disk import check_room

MOST_REMARKS = 5
"""Remarks about a split's files that are printed."""


class ReadSplit(NamedTuple):
    """A split of a source whose rows were read once.

    Attributes:
        batches: Reads the rows that a mask (bool [rows]) picks, with `label` as text where there is one.
        hashes: uint64 [rows], of each row's text.
        seen: The labels in the split.
        dropped: {"null", "empty", "nul": rows left out while reading}.
        asides: Left-out columns that are beside the rows, as the rows' places are.
    """

    batches: Callable[[Mask], Iterator[pa.RecordBatch]]
    schema: pa.Schema
    hashes: Hashes
    seen: SeenLabels
    dropped: Counter[str]
    longest: LongestRow
    asides: Sequence[str]

    def every(self) -> Iterator[pa.RecordBatch]:
        """Read all rows."""
        return self.batches(np.ones(len(self.hashes), dtype=bool))


def hashed_columns(columns: Columns) -> tuple[str, ...]:
    """Return the columns that are hashed to find equal rows: the text columns, or all."""
    return columns.text or tuple(ours for ours, _ in columns.kept)


def read_split(
    split: str, files: list[RowReader], columns: Columns, nulls: Nulls, path: Path, out: Workdir, asides: Sequence[str]
) -> ReadSplit:
    """Read and check a split's files. Raises DataError for an unusable row, an empty split, or rows that grow too much.

    Rows that were parsed are copied to the scratch file `path`. Parquet and Arrow are read again instead: a copy of all their
    rows may be thousands of times as large as the file.
    asides: left-out columns that go beside the rows."""
    seen, hashes, dropped, complete = SeenLabels(), list[Hashes](), Counter[str](), list[list[Mask]]()
    hashed, files = hashed_columns(columns), [bounded(rows) for rows in files]
    schema, count_read, kept, longest = united(files, columns), 0, 0, LongestRow(0, "")
    placed = pa.schema([*schema, *aside_schema(asides)])
    copies, garbled = not all(rows.is_binary for rows in files), GarbledTexts()
    with copied_rows(path, placed) if copies else nullcontext() as copy:
        for rows in files:
            complete.append([np.zeros(0, dtype=bool)])
            for clean in clean_batches(rows, columns, schema, split, seen, nulls, dropped, asides):
                if copy:
                    copy(clean.rows)
                else:
                    complete[-1].append(clean.complete)
                hashes.append(row_hashes(clean.rows.column(name) for name in hashed))
                garbled.look_at(clean.rows.column(name) for name in hashed)
                count_read, kept = count_read + len(clean.complete), kept + clean.rows.num_rows
                longest = max(longest, clean.longest)
                out.progress(count_read, count_read, f"{split} rows")
    tell_remarks([remark for rows in files for remark in rows.remarks()], out)
    if remark := garbled.remark(split, kept):
        out.warn(remark)
    if kept == 0:
        lost = ", ".join(f"{count} {reason}" for reason, count in dropped.items() if count)
        raise DataError(
            f"the split {split} is empty: {files[0].name} holds no rows{f' but those dropped ({lost})' if lost else ''}",
            "give a file with rows, or leave it out",
        )

    def read_again(keep: Mask) -> Iterator[pa.RecordBatch]:
        before = 0
        for rows, usable in zip(files, map(np.concatenate, complete), strict=True):
            count = int(usable.sum())
            chosen, before = narrowed(usable, keep[before : before + count]), before + count
            again = clean_batches(rows, columns, schema, split, SeenLabels(), nulls, Counter(), asides, chosen)
            yield from (clean.rows for clean in again)

    batches = partial(_copied_again, path) if copies else read_again
    return ReadSplit(batches, schema, np.concatenate(hashes), seen, dropped, longest, asides)


@contextmanager
def copied_rows(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Give a function that adds rows to a new Arrow file; it raises MachineError before the disk is full."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:

        def copy(rows: pa.RecordBatch) -> None:
            check_room(path.parent, rows.nbytes)
            writer.write_batch(rows)

        yield copy


def _copied_again(path: Path, keep: Mask) -> Iterator[pa.RecordBatch]:
    before = 0
    for batch in read_batches(path):
        yield batch.filter(pa.array(keep[before : before + batch.num_rows]))
        before += batch.num_rows


def tell_remarks(remarks: list[str], out: Workdir) -> None:
    """Say how files were read; of many files of the first ones."""
    for remark in remarks[:MOST_REMARKS]:
        out.info(remark)
    if remarks[MOST_REMARKS:]:
        out.info(f"{len(remarks) - MOST_REMARKS} more remarks of this kind")


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield a scratch file's batches, one in memory at a time."""
    # not memory-mapped: mapped pages count as this process's memory
    with pa.OSFile(str(path)) as opened:
        file = pa.ipc.open_file(opened)
        for index in range(file.num_record_batches):
            yield file.get_batch(index)


def column_hashes(read: ReadSplit, name: str) -> Hashes:
    """Return uint64 [rows], of one column's values. Raises ConfigError if rows lack it."""
    if name not in read.schema.names:
        raise ConfigError(
            f"data.split_by: the rows have no column {name}",
            f"name one of {', '.join(read.schema.names)} (data.columns)",
        )
    return np.concatenate([row_hashes([batch.column(name)]) for batch in read.every()])


def label_ids(read: ReadSplit, labels: LabelSet, keep: Mask) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the label ids of the rows that `keep` (bool [rows]) picks."""
    ids = [labels.encode(batch.column("label")).to_numpy().astype(np.int32) for batch in read.batches(keep)]
    return np.concatenate([np.empty(0, np.int32), *ids])


def kept_rows(read: ReadSplit, keep: Mask, labels: LabelSet | None, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows that `keep` (bool [rows]) picks as tables of `schema`; missing columns are null."""
    for rows in read.batches(keep):
        yield pa.Table.from_arrays([_column(rows, field, labels) for field in schema], schema=schema)


def _column(rows: pa.RecordBatch, field: pa.Field, labels: LabelSet | None) -> pa.Array:
    name = field.name
    if rows.schema.get_field_index(name) < 0:
        # numbers of another source may have texts of their own
        name = next((each for each in rows.schema.names if written_name(each) == name), None)
        if name is None:
            return pa.nulls(rows.num_rows, field.type)
    values = rows.column(name)
    if labels and field.name == "label":
        return labels.encode(values)
    return to_type(values, field.type, field.name, "the rows read", 0)


def common_schema(schemas: dict[str, pa.Schema], nested: Collection[str], labelled: bool, split: str) -> pa.Schema:
    """Return one schema for a split of several sources, all-null columns as text. Raises DataError."""
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
    """List the columns of lists or objects in any schema, sorted."""
    return sorted({field.name for schema in schemas for field in schema if is_nested(field.type)})
