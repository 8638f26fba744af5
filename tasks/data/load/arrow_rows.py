"""Read Arrow IPC files and streams batch by batch, and look at what they declare before anything is decompressed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from trnflow.tasks.data.load.row_sizes import in_batches
from trnflow.tasks.data.load.streams import file_errors
from trnflow.tasks.errors import DataError
from trnflow.tasks.sources.data_files import check_growth

MAGIC = b"ARROW1"
_FIRST = 8
"""Bytes of a file before its messages: MAGIC, and padding."""
# places of fields in the tables of Arrow's Message.fbs
_HEADER, _DATA, _NODES, _BUFFERS, _COMPRESSION = 2, 1, 1, 2, 3


def open_arrow(path: Path, name: str) -> tuple[pa.Schema, Callable[[list[str]], Iterator[pa.RecordBatch]]]:
    """Open a file, or a stream as `datasets` writes under the same extension; return its schema and a function from column
    names to batches. Raises DataError for one whose buffers grow too much."""
    with path.open("rb") as file:
        is_file = file.read(len(MAGIC)) == MAGIC
    # a file holds a stream, and is read as one: its footer may name other batches than those that were looked at
    first = _FIRST if is_file else 0
    check_growth(name, path.stat().st_size, _declared(path, first), "write it without compression")
    with pa.memory_map(str(path)) as mapped:
        count = pa.ipc.open_file(mapped).num_record_batches if is_file else None
        mapped.seek(first)
        schema = pa.ipc.open_stream(mapped).schema

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        with file_errors(name), pa.memory_map(str(path)) as mapped:
            mapped.seek(first)
            stream = _all(pa.ipc.open_stream(mapped), count, name)
            yield from in_batches(_whole((batch.select(columns) for batch in stream), name))

    return schema, batches


def _all(stream: pa.RecordBatchStreamReader, count: int | None, name: str) -> Iterator[pa.RecordBatch]:
    """Yield a stream's batches. Raises DataError unless they are as many as `count`."""
    read = 0
    for batch in stream:
        read += 1
        yield batch
    if count not in (None, read):
        raise DataError(f"{name} holds {read:,} batches, and its end says {count:,}", "write the file anew")


def _whole(batches: Iterable[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
    """Yield batches whose offsets and indices are inside their buffers. Raises DataError."""
    # others would read the process's memory, or end it
    before = 0
    for batch in batches:
        for column, values in zip(batch.schema.names, batch.columns, strict=True):
            try:
                values.validate(full=True)
            except pa.ArrowInvalid as error:
                raise broken(values, column, name, before) from error
        yield batch
        before += batch.num_rows


def broken(values: pa.Array, name: str, where: str, before: int) -> DataError:
    """Return the error for a column with bytes that are not UTF-8, or offsets that lead nowhere, with the first such row."""
    for number in range(len(values)):
        try:
            values.slice(number, 1).validate(full=True)
        except pa.ArrowInvalid as error:
            why = " ".join(str(error).split())
            return DataError(
                f"{where} row {before + number + 1}: {name} is broken: {why}", "write the file anew as UTF-8"
            )
    return DataError(f"{where}: the column {name} is broken after row {before}", "write the file anew")


def _declared(path: Path, first: int) -> int:
    """Return the decompressed bytes that a file's buffers declare, and one for each value that has none."""
    total = 0
    with pa.memory_map(str(path)) as mapped:
        mapped.seek(first)
        try:
            for message in pa.ipc.MessageReader.open_stream(mapped):
                if message.type in ("record batch", "dictionary"):
                    total += _unpacked(memoryview(message.metadata), message.body, message.type)
        except (pa.ArrowException, OSError, EOFError, struct.error):
            pass  # reading the rows names the fault
    return total


def _unpacked(metadata: memoryview, body: pa.Buffer, kind: str) -> int:
    """Return the decompressed bytes of a message's buffers, or a byte for each value if that is more."""
    header = _table(metadata, _field(metadata, _table(metadata, 0), _HEADER))
    if kind == "dictionary":
        header = _table(metadata, _field(metadata, header, _DATA))
    values = 0
    if nodes := _field(metadata, header, _NODES):
        vector = _table(metadata, nodes)
        lengths = (_number("<q", metadata, vector + 4 + 16 * node) for node in range(_number("<I", metadata, vector)))
        values = sum(max(length, 0) for length in lengths)
    buffers = _field(metadata, header, _BUFFERS)
    if not buffers or not _field(metadata, header, _COMPRESSION):
        return values
    vector = _table(metadata, buffers)
    total = 0
    for number in range(_number("<I", metadata, vector)):
        at, size = struct.unpack_from("<qq", metadata, vector + 4 + 16 * number)
        # a compressed buffer begins with its decompressed size, or with -1 where it was left as it is
        total += max(_number("<q", body, at), 0) if size >= 8 else 0
    return max(total, values)


def _table(metadata: memoryview, place: int) -> int:
    """Return where the table or vector begins that an offset at `place` points to."""
    return place + _number("<I", metadata, place)


def _field(metadata: memoryview, table: int, field: int) -> int:
    """Return where a table's field stands; 0 if it is left out."""
    names = table - _number("<i", metadata, table)
    if _number("<H", metadata, names) <= 4 + 2 * field:
        return 0
    offset = _number("<H", metadata, names + 4 + 2 * field)
    return table + offset if offset else 0


def _number(kind: str, data: memoryview | pa.Buffer, at: int) -> int:
    return int(struct.unpack_from(kind, data, at)[0])
