"""Cut a table into shards by its own content, and name each by what it holds.

A shard ends after a row whose text's checksum is small, once it holds half of `size`, at the latest when it holds twice that.
So a row that is added, changed or taken away moves the cuts next to it and no others: the next end that both tables have brings
them together again. Costs a checksum of half the rows and a sha256 of all, 1 ms a MB; memory is a shard.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, np.dtype[Any]]

ROW = 32
"""What a row weighs besides the bytes of its text."""


def cut_shards(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """The rows of `batches` (a column `text`, or `parts` with a text each) in order; `size`: bytes of text a shard, on average.

    The cuts depend on the rows alone, not on how they come in batches."""
    import pyarrow as pa

    least, most = size / 2, size * 2
    pending: list[pa.RecordBatch] = []
    weight = 0
    for batch in batches:
        start = 0
        for row, text in enumerate(_texts(batch), 1):
            own = len(text) + ROW
            weight += own
            if weight >= most or (weight >= least and zlib.crc32(text) < own / least * 2**32):
                pending.append(batch.slice(start, row - start))
                yield pa.Table.from_batches(pending).combine_chunks()
                pending, weight, start = [], 0, row
        if start < batch.num_rows:
            pending.append(batch.slice(start))
    if pending:
        yield pa.Table.from_batches(pending).combine_chunks()


def content_digest(table: pa.Table) -> str:
    """`sha256:<hex>` of the values: equal tables have equal digests, however their memory is laid out."""
    digest = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(f"{name}\0".encode())
        _add(digest, column.combine_chunks())
    return f"sha256:{digest.hexdigest()}"


class Texts(NamedTuple):
    """A table's texts, one after another. data: UTF-8, as bytes and as uint8 [bytes]; rows, parts: int64 [rows + 1],
    [parts + 1], where each begins in it; first: int64 [rows + 1], the first part of each row; train, plain: bool [parts]. A
    classified text is one part."""

    data: bytes
    array: Array
    rows: Array
    parts: Array
    first: Array
    train: Array
    plain: Array

    def last_part(self) -> Array:
        """int64 [rows]: the last part of each row, which has one."""
        return self.first[1:] - 1


def texts_of(table: pa.Table) -> Texts:
    """The column `text`, or `parts` (with `text`, `train`, and `plain` where it is known)."""
    import numpy as np

    if "parts" in table.column_names:
        column = table.column("parts").combine_chunks()
        offsets = column.offsets.to_numpy().astype(np.int64)
        items = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        strings, first = items.field("text"), offsets - offsets[0]
        train = items.field("train").to_numpy(zero_copy_only=False)
        names = [field.name for field in items.type]
        plain = items.field("plain").to_numpy(zero_copy_only=False) if "plain" in names else np.zeros_like(train)
    else:
        strings = table.column("text").combine_chunks()
        first = np.arange(len(strings) + 1)
        train = plain = np.zeros(len(strings), dtype=bool)
    bounds = _offsets(strings).astype(np.int64)
    data = bytes(memoryview(strings.buffers()[2] or b"")[bounds[0] : bounds[-1]])
    parts = bounds - bounds[0]
    return Texts(data, np.frombuffer(data, dtype=np.uint8), parts[first], parts, first, train, plain)


def _texts(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """The bytes of each row's text, of its parts in order, without making strings of them."""
    column = batch.column("parts" if "parts" in batch.schema.names else "text")
    if "parts" in batch.schema.names:
        strings = column.values.field("text")
        bounds = _offsets(strings)[column.offsets.to_numpy()]
    else:
        strings, bounds = column, _offsets(column)
    data = memoryview(strings.buffers()[2] or b"")
    for start, end in pairwise(bounds.tolist()):
        yield data[start:end]


def _offsets(strings: pa.Array) -> Any:
    """int32 [rows + 1]: where each string begins in the array's bytes."""
    import numpy as np

    first, count = strings.offset, len(strings) + 1
    if len(strings) == 0:
        return np.zeros(1, dtype=np.int32)
    return np.frombuffer(strings.buffers()[1], dtype=np.int32)[first : first + count]


def _add(digest: Any, values: pa.Array) -> None:
    """Type, length, what is null, and the values, lengths before contents."""
    import numpy as np
    import pyarrow as pa

    digest.update(f"{values.type} {len(values)} {values.null_count}\0".encode())
    if values.null_count:
        _add(digest, values.is_valid())
    if pa.types.is_struct(values.type):
        for child in values.flatten():
            _add(digest, child)
    elif pa.types.is_list(values.type):
        digest.update(np.diff(values.offsets.to_numpy()).tobytes())
        _add(digest, values.flatten())
    elif pa.types.is_string(values.type):
        known = values.fill_null("") if values.null_count else values
        bounds = _offsets(known)
        digest.update(np.diff(bounds).tobytes())
        digest.update(memoryview(known.buffers()[2] or b"")[bounds[0] : bounds[-1]])
    else:
        known = values.fill_null(0) if values.null_count else values
        digest.update(known.to_numpy(zero_copy_only=False).tobytes())
