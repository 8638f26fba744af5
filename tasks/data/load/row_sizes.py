"""How many bytes rows have once they are decoded, computed without decoding them, and batches divided by it.

A value may stand in a file once and in a million rows: in dictionaries, runs and views of Arrow and Parquet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BATCH = 4096
"""Rows of a batch."""
BATCH_BYTES = 1 << 26
"""Decoded bytes of a batch of more than one row."""
HASH = 8
"""Bytes that a row takes at least: its hash."""
ENTRY = 4
"""Bytes of a value at least: its offset, or `null` in JSON text."""

Sizes = np.ndarray[Any, np.dtype[np.int64]]
_STRINGS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_VIEWS = (pa.types.is_string_view, pa.types.is_binary_view)
_LIST_VIEWS = (pa.types.is_list_view, pa.types.is_large_list_view)


def batch_sizes(batch: pa.RecordBatch) -> Sizes:
    """Return the decoded bytes of each row, int64 [rows]."""
    return sum((_sizes(values) for values in batch.columns), np.full(batch.num_rows, HASH, dtype=np.int64))


def _sizes(values: pa.Array) -> Sizes:
    try:
        return row_sizes(values)
    except (IndexError, ValueError):  # broken offsets or indices: the row is named where the values are checked
        return np.full(len(values), values.nbytes // max(len(values), 1), dtype=np.int64)


def row_sizes(values: pa.Array) -> Sizes:
    """Return the decoded bytes of each value, int64 [rows]; of lists and objects about those of their JSON text."""
    kind, count = values.type, len(values)
    if isinstance(kind, pa.BaseExtensionType):
        return row_sizes(values.storage)
    if pa.types.is_dictionary(kind):
        places = values.indices.fill_null(0).to_numpy(zero_copy_only=False)
        repeated: Sizes = row_sizes(values.dictionary)[places] if len(values.dictionary) else np.full(count, ENTRY)
        return repeated
    if pa.types.is_run_end_encoded(kind):
        runs = np.searchsorted(values.run_ends.to_numpy(), np.arange(count) + values.offset, side="right")
        run: Sizes = row_sizes(values.values)[runs]
        return run
    if any(is_text(kind) for is_text in (*_STRINGS, *_VIEWS)):
        return _lengths(values) + ENTRY
    if pa.types.is_struct(kind):
        # each row's JSON text has the names
        names = sum(len(field.name.encode()) + ENTRY for field in kind)
        fields = (row_sizes(values.field(number)) for number in range(kind.num_fields))
        return sum(fields, np.full(count, names, dtype=np.int64))
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return _list_sizes(values) + ENTRY
    width = kind.bit_width // 8 if pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind) else 0
    return np.full(count, max(width or values.nbytes // max(count, 1), ENTRY), dtype=np.int64)


def _lengths(texts: pa.Array) -> Sizes:
    """Return the bytes of each text, int64 [rows]."""
    if any(is_text(texts.type) for is_text in _STRINGS):
        lengths: Sizes = pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return lengths
    # a view is four int32, the first its length
    views = np.frombuffer(texts.buffers()[1] or b"", "<i4").reshape(-1, 4)
    there = texts.is_valid().to_numpy(zero_copy_only=False)
    return np.where(there, views[texts.offset : texts.offset + len(texts), 0], 0).astype(np.int64)


def _list_sizes(values: pa.Array) -> Sizes:
    """Return the decoded bytes of what each list or map holds, int64 [rows]."""
    kind = values.type
    if pa.types.is_fixed_size_list(kind):
        wide = kind.list_size
        inner = values.values.slice(values.offset * wide, len(values) * wide)
        fixed: Sizes = row_sizes(inner).reshape(len(values), wide).sum(axis=1)
        return fixed
    begin = values.offsets.to_numpy()
    if any(is_list(kind) for is_list in _LIST_VIEWS):
        ends = _ends(row_sizes(values.values))
        viewed: Sizes = ends[begin + values.sizes.to_numpy()] - ends[begin]
        return viewed
    parts = (values.keys, values.items) if pa.types.is_map(kind) else (values.values,)
    # a slice has all that its whole holds
    sizes = [row_sizes(part.slice(begin[0], begin[-1] - begin[0])) for part in parts]
    listed: Sizes = np.diff(_ends(sum(sizes[1:], sizes[0]))[begin - begin[0]])
    return listed


def _ends(sizes: Sizes) -> Sizes:
    """Return the bytes before each value, and of all: int64 [values + 1]."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


def in_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of at most BATCH rows, and of BATCH_BYTES decoded bytes unless one row has more."""
    waiting, rows, size = list[pa.RecordBatch](), 0, 0
    for part, part_size in _divided(batches):
        if waiting and (rows + part.num_rows > BATCH or size + part_size > BATCH_BYTES):
            yield from _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(part)
        rows, size = rows + part.num_rows, size + part_size
    yield from _joined(waiting)


def _divided(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield (rows, their decoded bytes) of parts that are small enough."""
    shared: bool | None = None
    for batch in batches:
        if shared is None:
            shared = any(map(_shares_values, batch.schema.types))
        if not shared and batch.num_rows <= BATCH and batch.nbytes <= BATCH_BYTES:
            yield batch, batch.nbytes
            continue
        ends, start = _ends(batch_sizes(batch)), 0
        while start < batch.num_rows:
            fitting = int(np.searchsorted(ends, ends[start] + BATCH_BYTES, side="right")) - 1
            end = min(max(fitting, start + 1), start + BATCH, batch.num_rows)
            yield batch.slice(start, end - start), int(ends[end] - ends[start])
            start = end


def _shares_values(kind: pa.DataType) -> bool:
    """Return whether values of a type may be stored once and stand in many rows."""
    if isinstance(kind, pa.BaseExtensionType):
        return _shares_values(kind.storage_type)
    shared = (pa.types.is_dictionary, pa.types.is_run_end_encoded, *_VIEWS, *_LIST_VIEWS)
    return any(is_one(kind) for is_one in shared) or any(map(_shares_values, inner_types(kind)))


def inner_types(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of what a nested type holds."""
    return [kind.field(number).type for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches if len(batches) < 2 else pa.Table.from_batches(batches).combine_chunks().to_batches()
