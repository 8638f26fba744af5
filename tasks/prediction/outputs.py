"""Write predictions as JSON lines, CSV or Parquet, by the ending of the file's name."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, MachineError
from trnflow.tasks.system.whole_file import is_replaced, is_stdout, written

if TYPE_CHECKING:
    import pyarrow as pa

Append = Callable[[Meta], None]

STDOUT = Path("-")
ENDINGS = {"": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
BATCH = 1024
"""Rows of CSV or Parquet that are written together."""


def goes_to_stdout(out: Path) -> bool:
    return out == STDOUT or is_stdout(out)


def output_format(out: Path) -> str:
    """Return json, csv or parquet. Raises ConfigError for a folder, and for another ending of a new or plain file."""
    if out == STDOUT:
        return "json"
    with _opening(out):
        is_plain = is_replaced(out)
    # of a link its own name says it, else that of its target
    endings = [ending for name in (out, os.path.realpath(out)) if (ending := Path(name).suffix.lower())]
    known = next((ending for ending in endings if ending in ENDINGS), "")
    if is_plain and endings and not known:
        raise ConfigError(
            f"--out: {out.name} ends in {endings[0]}, which is no format of predictions",
            "name it .jsonl, .csv or .parquet; a name without an ending means JSON lines",
        )
    return ENDINGS[known]


@contextmanager
def new_rows(out: Path, source: Path | None, types: Mapping[str, pa.DataType | str]) -> Iterator[Append]:
    """Yield a function that appends a row to the file `out`, which has the rows when the context ends without an error.

    Args:
        out: `-` is standard output. A device, a pipe and standard output get JSON lines row by row.
        source: Must be another file.
        types: Of all columns, as of Arrow or of `Kind.answers`: the columns of CSV and Parquet.

    Raises:
        ConfigError: The path can't be written, or its ending is unknown.
        MachineError: Writing failed, as on a full disk.
    """
    if source is not None and out.is_file() and out.samefile(source):
        raise ConfigError(f"--out and --file are both {out}", "write the predictions to another file")
    kind, stack = output_format(out), ExitStack()
    with _opening(out):
        file = stack.enter_context(_stdout() if out == STDOUT else written(out))
        place = file if out == STDOUT or is_replaced(out) else stack.enter_context(_copied(file))
    with stack:
        rows = stack.enter_context(_lines(file) if kind == "json" else _table(place, types, kind))

        def append(row: Meta) -> None:
            with _writing(out):
                rows(row)

        yield append
        with _writing(out):
            stack.pop_all().close()


def json_text(value: Any, *, ascii: bool = False) -> str:
    """Return a value as JSON: dates and decimals as texts, NaN as null, and an infinite number as a text."""
    try:
        return json.dumps(value, ensure_ascii=ascii, allow_nan=False, default=_text)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=ascii, default=_text)


def _text(value: Any) -> str:
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@contextmanager
def _lines(file: BinaryIO) -> Iterator[Append]:
    """Write rows as JSON lines, each at once."""

    def append(row: Meta) -> None:
        file.write(f"{json_text(row)}\n".encode())
        file.flush()

    yield append


@contextmanager
def _table(file: BinaryIO, types: Mapping[str, pa.DataType | str], kind: str) -> Iterator[Append]:
    """Write rows as CSV or Parquet. What is nested is JSON text in CSV."""
    import pyarrow as pa
    from pyarrow.csv import CSVWriter
    from pyarrow.parquet import ParquetWriter

    columns = {name: _column(type_, kind) for name, type_ in types.items()}
    schema = pa.schema([(name, type_) for name, (type_, _) in columns.items()])
    rows: list[Meta] = []

    def write() -> None:
        arrays = [
            pa.array([None if (value := row.get(name)) is None else of(value) for row in rows], type_)
            for name, (type_, of) in columns.items()
        ]
        writer.write(pa.table(arrays, schema))
        rows.clear()

    def append(row: Meta) -> None:
        rows.append(row)
        if len(rows) == BATCH:
            write()

    with (CSVWriter if kind == "csv" else ParquetWriter)(file, schema) as writer:
        yield append
        write()


def _column(type_: pa.DataType | str, kind: str) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Return the type of a column in a file of this kind, and what turns a row's value into a value of that type."""
    import pyarrow as pa

    types = pa.types
    if isinstance(type_, str):
        place = [("start", pa.int64()), ("end", pa.int64()), ("score", pa.float64())]
        type_ = {
            "string": pa.string(), "long": pa.int64(), "boolean": pa.bool_(), "list": pa.list_(pa.string()),
            "map": pa.map_(pa.string(), pa.float64()), "numbers": pa.list_(pa.float64()),
            "entities": pa.list_(pa.struct([("type", pa.string()), ("text", pa.string()), *place])),
        }[type_]  # fmt: skip
    if types.is_dictionary(type_):
        type_ = type_.value_type
    if isinstance(type_, pa.JsonType) or (types.is_nested(type_) and kind == "csv"):
        return pa.string(), json_text
    if types.is_map(type_):
        return type_, lambda value: [*value.items()] if isinstance(value, dict) else value
    plain = (types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_string)
    if types.is_nested(type_) or any(is_plain(type_) for is_plain in plain):
        return type_, lambda value: value
    if kind == "csv" or isinstance(type_, pa.BaseExtensionType):
        return pa.string(), _text
    return type_, lambda value: value


@contextmanager
def _stdout() -> Iterator[BinaryIO]:
    sys.stdout.flush()
    yield getattr(sys.stdout, "buffer", None) or _Bytes(sys.stdout)  # type: ignore[misc]


class _Bytes:
    """A text stream, which another program put in place of standard output, as a file of bytes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.flush = stream.flush

    def write(self, data: bytes) -> None:
        self._stream.write(data.decode())


@contextmanager
def _copied(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield a file in which a writer may ask for its position; at the end `file` has its content."""
    with tempfile.TemporaryFile() as whole:
        yield whole
        whole.seek(0)
        shutil.copyfileobj(whole, file)


@contextmanager
def _opening(out: Path) -> Iterator[None]:
    try:
        yield
    except IsADirectoryError as error:
        raise ConfigError(f"--out: {out} is a folder", "name a file, such as predictions.jsonl") from error
    except OSError as error:
        raise ConfigError(
            f"--out: {out} can't be written: {error.strerror}", "name a file in a folder that exists and is yours"
        ) from error


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) and goes_to_stdout(out):
            raise  # its reader has enough
        raise MachineError(
            f"--out: writing {out} failed: {error.strerror}", "make room, or name a file on another disk"
        ) from error
