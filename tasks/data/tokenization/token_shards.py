"""Cut texts into shards at places that depend on content, and compute each shard's digest: 2 ms a MB."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.data.texts import HELD_OUT, PAIR, TOKEN

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, np.dtype[Any]]

ROW = 32
"""Bytes that a row adds besides its text."""


def cut_shards(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """Cut rows with `text` (and `text_pair`) or `parts` into shards of about `size` bytes of text, however they are batched."""
    import pyarrow as pa

    least, most = size / 2, size * 2
    pending: list[pa.RecordBatch] = []
    weight = 0
    for batch in batches:
        start = 0
        for row, text in enumerate(_texts(batch), 1):
            own = len(text) + ROW
            weight += own
            # a shard of half the size ends after the next row with a small checksum: a changed row changes the shards
            # around it alone
            if weight >= most or (weight >= least and zlib.crc32(text) < own / least * 2**32):
                pending.append(batch.slice(start, row - start))
                yield pa.Table.from_batches(pending).combine_chunks()
                pending, weight, start = [], 0, row
        if start < batch.num_rows:
            pending.append(batch.slice(start))
    if pending:
        yield pa.Table.from_batches(pending).combine_chunks()


def content_digest(table: pa.Table) -> str:
    """Return a digest of a table's values, however they are laid out in memory."""
    import numpy as np
    import pyarrow as pa

    copied = table.take(np.arange(table.num_rows)).combine_chunks()  # removes offsets and unused bits that slices have
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema.remove_metadata()) as writer:
        writer.write_table(copied.replace_schema_metadata())
    return f"sha256:{hashlib.sha256(stream.getvalue()).hexdigest()}"


class Texts(NamedTuple):
    """A table's texts, joined. A row's text has parts: some to train on, others not; of classification one.

    Attributes:
        data: UTF-8; array: the same as uint8.
        rows, parts: int64 [n + 1], where each begins in `data`, and the end.
        first: int64 [rows + 1], each row's first part.
        train: bool [parts], whether a part is trained on.
        plain: bool [parts], whether spelled special tokens are ordinary text.
        held_out: bool [parts], whether a part is kept out of the loss within an answer.
        ends_prompt: bool [parts], whether a program sends the text up to the part's end as a prompt.
        tokens: of each part the role of the special token that it is, or None; None where no part can be one.
    """

    data: bytes
    array: Array
    rows: Array
    parts: Array
    first: Array
    train: Array
    plain: Array
    held_out: Array
    ends_prompt: Array
    tokens: list[str | None] | None = None

    @property
    def prompts(self) -> Array:
        """Return where each prompt ends in `data`, ascending: int64 [prompts]."""
        return self.parts[1:][self.ends_prompt]


def texts_of(table: pa.Table) -> Texts:
    """Join the texts of a table with a column `text` or `parts`."""
    import numpy as np

    tokens = None
    if "parts" in table.column_names:
        column = table.column("parts").combine_chunks()
        offsets = column.offsets.to_numpy().astype(np.int64)
        structs = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        strings, first = structs.field("text"), offsets - offsets[0]
        names = [field.name for field in structs.type]
        train, plain, held_out, ends = (_flags(structs, name) for name in ("train", "plain", HELD_OUT, "ends_prompt"))
        tokens = structs.field(TOKEN).to_pylist() if TOKEN in names else None
    else:
        strings = table.column("text").combine_chunks()
        first = np.arange(len(strings) + 1)
        train = plain = held_out = ends = np.zeros(len(strings), dtype=bool)
    bounds = _offsets(strings).astype(np.int64)
    data = bytes(memoryview(strings.buffers()[2] or b"")[bounds[0] : bounds[-1]])
    parts = bounds - bounds[0]
    return Texts(
        data, np.frombuffer(data, dtype=np.uint8), parts[first], parts, first, train, plain, held_out, ends, tokens
    )


def _flags(structs: pa.StructArray, name: str) -> Array:
    """Return a field of parts, bool [parts]; False where parts lack it."""
    import numpy as np
    import pyarrow as pa

    if structs.type.get_field_index(name) < 0:
        return np.zeros(len(structs), dtype=bool)
    flags: Array = structs.field(name).cast(pa.bool_()).fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _texts(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """Yield the bytes of each row's text, part by part, without copying."""
    column = batch.column("parts" if "parts" in batch.schema.names else "text")
    if "parts" in batch.schema.names:
        strings = column.values.field("text")
        bounds = _offsets(strings)[column.offsets.to_numpy()]
    else:
        strings, bounds = column, _offsets(column)
    seconds = _texts(batch.select([PAIR]).rename_columns(["text"])) if PAIR in batch.schema.names else None
    data = memoryview(strings.buffers()[2] or b"")
    for start, end in pairwise(bounds.tolist()):
        yield data[start:end] if seconds is None else memoryview(bytes(data[start:end]) + next(seconds))


def _offsets(strings: pa.Array) -> Any:
    """Return int32 [rows + 1]: the byte where each string begins."""
    import numpy as np

    first, count = strings.offset, len(strings) + 1
    if len(strings) == 0:
        return np.zeros(1, dtype=np.int32)
    return np.frombuffer(strings.buffers()[1], dtype=np.int32)[first : first + count]
