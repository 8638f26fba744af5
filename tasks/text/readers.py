"""Rows of parquet, csv, tsv, json lines, arrow and text files, streamed in batches of some of their columns.

Memory: one batch (a slice of a row group, a block of a csv, 4,096 lines), whatever the file's size; a .json file that
is one array is held whole. csv and tsv columns are always strings: what a cell means is for its reader to say. gzip,
bzip2 and zstd are recognised by their first bytes. Fails with DataError, which names the file and the row or line.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tasks.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 4096
_BUFFER = 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True)
class Rows:
    """A file's rows. name: for messages; schema: of all columns; batches: streams the named columns, in this order."""

    name: str
    schema: pa.Schema
    batches: Callable[[list[str]], Iterator[pa.RecordBatch]]


def open_file(path: Path, kind: str, name: str) -> Rows:
    """kind: a format of `tasks.text.files.FORMATS`; name: what messages call the file."""
    opener = {"parquet": _parquet, "csv": _csv, "tsv": _tsv, "jsonl": _json, "arrow": _arrow, "txt": _text}[kind]
    with _told(name):
        rows = opener(path, name)
    twice = [column for column, count in Counter(rows.schema.names).items() if count > 1]
    if twice:
        raise DataError(f"{name} has two columns named {twice[0]}", "rename one in the file")
    return rows


def open_table(table: pa.Table, name: str) -> Rows:
    """Rows that are in memory, or mapped into it."""
    return Rows(name, table.schema, lambda columns: iter(table.select(columns).to_batches(max_chunksize=BATCH)))


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    """Arrow's and the system's errors as one line that names the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, EOFError) as error:
        what = " ".join(str(error).split())[:300].rstrip(".")
        raise DataError(
            f"{name} can't be read: {what}", "repair the file or fetch it again, or name its format with data.format"
        ) from error


@contextlib.contextmanager
def _bad_bytes(path: Path, name: str) -> Iterator[None]:
    """Bytes that are not UTF-8 as an error that names their line; only then is the file read a second time."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError) or "UTF8" in str(error):
            for _ in _lines(path, name):
                pass
        raise


def _parquet(path: Path, name: str) -> Rows:
    import pyarrow.parquet as pq

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        # buffered: else whole columns of a row group, which may be a million rows, are held
        with _told(name), pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            yield from file.iter_batches(BATCH, columns=columns, use_threads=False)

    with pq.ParquetFile(path) as file:
        return Rows(name, file.schema_arrow, batches)


def _tsv(path: Path, name: str) -> Rows:
    return _csv(path, name, "\t")


def _csv(path: Path, name: str, delimiter: str = ",") -> Rows:
    import pyarrow as pa
    from pyarrow import csv

    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)

    def reader(convert: csv.ConvertOptions | None = None) -> csv.CSVStreamingReader:
        # one thread: only then do Arrow's messages tell the row
        return csv.open_csv(_stream(path), csv.ReadOptions(use_threads=False), parse, convert)

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        types = {column: pa.string() for column in columns}
        with _told(name), _bad_bytes(path, name):
            yield from reader(csv.ConvertOptions(column_types=types, include_columns=columns))

    with _bad_bytes(path, name):
        names = _header(path, delimiter)
    return Rows(name, pa.schema([(column, pa.string()) for column in names]), batches)


def _header(path: Path, delimiter: str) -> list[str]:
    """The first record's cells; Arrow would type the columns from the first block only to read them."""
    import csv
    import io

    with _stream(path) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as lines:
        return next(csv.reader(lines, delimiter=delimiter), [])


def _arrow(path: Path, name: str) -> Rows:
    """Arrow files, and the streams that `datasets` writes under the same extension."""
    import pyarrow as pa

    with path.open("rb") as file:
        is_file = file.read(6) == b"ARROW1"
    mapped = pa.memory_map(str(path))
    return open_table((pa.ipc.open_file if is_file else pa.ipc.open_stream)(mapped).read_all(), name)


def _text(path: Path, name: str) -> Rows:
    """One row a line, column `text`; blank lines are none."""
    import pyarrow as pa

    schema = pa.schema([("text", pa.string())])

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        lines = (line for _, line in _lines(path, name) if line)
        while batch := list(islice(lines, BATCH)):
            yield pa.record_batch(
                [pa.array(batch, pa.string())] * len(columns), schema=pa.schema([schema[0]] * len(columns))
            )

    return Rows(name, schema, batches)


def _json(path: Path, name: str) -> Rows:
    """One object a line, or one array of objects. Types are those of the first batch; a missing key is null."""
    import pyarrow as pa

    head = list(islice(_objects(path, name), BATCH))
    names = list(dict.fromkeys(key for row in head for key in row))
    schema = pa.schema([(key, _json_type(head, key, name)) for key in names])

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        objects, done = _objects(path, name), 0
        while rows := list(islice(objects, BATCH)):
            arrays = [_json_array(rows, key, schema.field(key).type, name, done) for key in columns]
            yield pa.record_batch(arrays, names=columns)
            done += len(rows)

    return Rows(name, schema, batches)


def _json_type(rows: list[dict[str, Any]], key: str, name: str) -> pa.DataType:
    import pyarrow as pa

    with _told(f"{name}: the column {key}"):
        kind = pa.infer_type([row.get(key) for row in rows])
    return pa.string() if pa.types.is_null(kind) else kind


def _json_array(rows: list[dict[str, Any]], key: str, kind: pa.DataType, name: str, before: int) -> pa.Array:
    """The column as an Arrow array; row by row only to find the row that does not fit."""
    import pyarrow as pa

    values = [row.get(key) for row in rows]
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        for number, value in enumerate(values, before + 1):
            try:
                pa.array([value], kind)
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{name} row {number}: {key} holds {error.object[error.start : error.end]!a}, half a character",
                    "repair the row: such escapes (surrogates) come in pairs",
                ) from error
            except (pa.ArrowException, OverflowError) as error:
                raise DataError(
                    f"{name} row {number}: {key} is {json.dumps(value)[:80]}, but the rows before are of type {kind}",
                    "give the column one type in the file",
                ) from error
        raise


def _objects(path: Path, name: str) -> Iterator[dict[str, Any]]:
    if _is_array(path):
        yield from _array_objects(path, name)
        return
    for number, line in _lines(path, name):
        if line:
            yield _object(line, f"{name} line {number}")


def _is_array(path: Path) -> bool:
    with _stream(path) as raw:
        head: bytes = raw.read(4096)
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def _array_objects(path: Path, name: str) -> Iterator[dict[str, Any]]:
    with _stream(path) as raw, _told(name), _bad_bytes(path, name):
        text = raw.read().decode("utf-8-sig")
    try:
        items = json.loads(text)
    except ValueError as error:
        raise DataError(f"{name} is not JSON: {error}", "repair the file") from error
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            raise DataError(f"{name} item {number} is not an object: {json.dumps(item)[:80]}", "give objects: {...}")
        yield item


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        item = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where} is not JSON: {error}", "give one object a line, or repair the line") from error
    if not isinstance(item, dict):
        raise DataError(f"{where} is not an object: {line[:80]}", "give one object a line: {...}")
    return item


def _lines(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """(number from 1, stripped line), decoded one by one so that a bad byte is reported with its line."""
    import io

    with _stream(path) as raw, _told(name):
        for number, line in enumerate(io.BufferedReader(raw), 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{name} line {number} is not UTF-8: {error.reason}", "convert the file to UTF-8"
                ) from error


def _stream(path: Path) -> Any:
    """The file's bytes, decompressed if its first bytes say so."""
    import pyarrow as pa

    with path.open("rb") as file:
        head: bytes = _first(file)
    compression = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    return pa.input_stream(str(path), compression=compression)


def _first(file: BinaryIO) -> bytes:
    return file.read(4)
