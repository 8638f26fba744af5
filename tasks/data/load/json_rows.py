"""Read JSON files, one object a line or one array of objects; a missing key is null, and so is NaN."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from trnflow.tasks.data.load.column_types import WrittenNumbers, encode_json, is_nested, json_object
from trnflow.tasks.data.load.row_sizes import BATCH, ENTRY
from trnflow.tasks.data.load.streams import (
    BUFFER,
    check_width,
    file_errors,
    grouped,
    lines,
    max_cell,
    open_stream,
    open_text,
    too_long,
)
from trnflow.tasks.errors import DataError
from trnflow.tasks.sources.data_files import check_growth
from trnflow.tasks.system.json_numbers import CONSTANTS, WrittenNumber, as_written, dumps

Encode = Callable[[Any], str]
FIX = "give one object a line, or one array of objects"
LONGEST_TOKEN = 16
"""Characters of the longest token of JSON that is neither text nor number, and some more."""
_BLANKS = re.compile(r"[ \t\r\n]*")
OBJECT = 32
"""Bytes that are read in the time that it takes to read an object of none."""
LARGEST = 1 << 63
"""The magnitude from which on integers may not fit into 64 bits."""


class _Decoder(json.JSONDecoder):
    """Decodes JSON, whose numbers keep their texts if `keeps_texts`. has_written: whether it met a WrittenNumber."""

    def __init__(self, *, keeps_texts: bool = True) -> None:
        self.has_written = False
        parse = self._number if keeps_texts else None
        super().__init__(object_pairs_hook=json_object, parse_float=parse, parse_constant=CONSTANTS.__getitem__)

    def _number(self, text: str) -> float:
        number = as_written(text)
        if type(number) is not float:
            self.has_written = True
        return number


def open_json(path: Path, name: str) -> tuple[pa.Schema, Callable[[list[str]], Iterator[pa.RecordBatch]]]:
    """Open a JSON file; return its schema, in the order in which columns occur, and a function from column names to
    batches. Raises DataError with file and row or line."""
    kinds: dict[str, dict[type, None]] = {}
    first, count = _Decoder(), 0
    # read twice: a column's type depends on all rows
    for row, _ in _objects(path, name, first):
        check_width(max(len(kinds), len(row)), name)
        count += 1
        if count % BATCH == 0:
            check_growth(name, path.stat().st_size, count * OBJECT, "give the unpacked file")
        for key, value in row.items():
            kind = type(value)
            if kind is int and not -LARGEST <= value < LARGEST:
                kind = WrittenNumber
            if kind not in kinds.setdefault(key, {}):
                kinds[key][kind] = None
    schema = pa.schema([(key, _column_type([*values])) for key, values in kinds.items()])

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        # keys that a row lacks take no space in the file
        check_growth(name, path.stat().st_size, count * len(columns) * ENTRY, "name fewer columns (data.columns)")
        objects, before = _objects(path, name, _Decoder(keeps_texts=first.has_written)), 0
        encode: Encode = partial(dumps, ensure_ascii=False) if first.has_written else encode_json
        for rows in grouped(objects, len(schema)):
            arrays = [_column(rows, key, schema.field(key).type, encode, name, before) for key in columns]
            yield pa.record_batch(arrays, names=columns)
            before += len(rows)

    return schema, batches


def first_entries(path: Path, name: str, most: int, characters: int) -> Iterator[str]:
    """Yield the first `most` entries of a file that is one array, each as a line of JSON, while they have fewer `characters`.
    Raises DataError."""
    decoder, left = _Decoder(), characters
    with open_text(path, name) as text:
        for entry, size in islice(_entries(text, name, decoder), most):
            yield dumps(entry)
            left -= size
            if left <= 0:
                break


def _column_type(kinds: list[type]) -> pa.DataType:
    """Return the Arrow type for values of these Python types."""
    types = {bool: pa.bool_(), int: pa.int64(), str: pa.string(), type(None): pa.null()}
    if list in kinds or dict in kinds:
        return pa.json_()
    kinds = [kind for kind in kinds if kind is not type(None)] or kinds
    # on a conflict the first type, so that the array fails at the row that the error names
    if bool in kinds:
        return types[bool]
    if {*kinds} <= {int, float, WrittenNumber} and {*kinds} != {int}:
        return WrittenNumbers(are_floats={*kinds} == {float})
    return types.get(kinds[0], pa.float64())


def _column(
    rows: list[dict[str, Any]], key: str, kind: pa.DataType, encode: Encode, name: str, before: int
) -> pa.Array:
    """Return a column as an array. Raises DataError for the first row of another type. before: the file's rows before."""
    values = [row.get(key) for row in rows]
    try:
        return _array(values, kind, encode)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, RecursionError):
        for number, value in enumerate(values, before + 1):
            where = f"{name} row {number}: {key}"
            try:
                _array([value], kind, encode)
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{where} holds {error.object[error.start : error.end]!a}, half a character",
                    "repair the row: such escapes (surrogates) come in pairs",
                ) from error
            except RecursionError as error:
                raise _too_deep(where) from error
            except (pa.ArrowException, OverflowError) as error:
                raise DataError(
                    f"{where} is {json.dumps(value)[:80]}, which is no {kind}", "give the column one type in the file"
                ) from error
        raise


def _array(values: list[Any], kind: pa.DataType, encode: Encode) -> pa.Array:
    if isinstance(kind, WrittenNumbers):
        return kind.of([None if value is None else str(value) for value in values])
    if not is_nested(kind):
        return pa.array(values, kind)
    texts = [None if value is None else encode(value) for value in values]
    return pa.ExtensionArray.from_storage(kind, pa.array(texts, pa.string()))


def _objects(path: Path, name: str, decoder: _Decoder) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield (object, its characters)."""
    with file_errors(name), open_stream(path, name) as raw:
        is_array = raw.peek(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["
    if is_array:
        with open_text(path, name) as text:
            entries = enumerate(_entries(text, name, decoder), 1)
            yield from ((_object(entry, f"{name} item {number}"), size) for number, (entry, size) in entries)
        return
    for number, line in lines(path, name):
        if line := line.strip():
            where = f"{name} line {number}"
            yield _object(_parsed(line, where, decoder.decode), where), len(line)


class _Unparsed:
    """What was read of a file and is not parsed yet: `read` from `at` on."""

    def __init__(self, file: TextIO) -> None:
        self._file, self.read, self.at, self.is_end = file, "", 0, False

    def more(self) -> None:
        """Read on; twice as much each time, since an entry is parsed from its start again."""
        more = self._file.read(max(BUFFER, len(self.read) - self.at))
        self.read, self.at, self.is_end = self.read[self.at :] + more, 0, not more

    def mark(self) -> str:
        """Pass blanks, and return the character after them; "" at the end."""
        while True:
            self.at = _BLANKS.match(self.read, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.read) or self.is_end:
                return self.read[self.at : self.at + 1]
            self.more()


def _entries(file: TextIO, name: str, decoder: _Decoder) -> Iterator[tuple[Any, int]]:
    """Yield (entry, its characters) of a file that is one array. Takes the memory of one entry."""
    rest, number, mark = _Unparsed(file), 0, ","
    rest.mark()
    while mark == ",":
        rest.at += 1
        if rest.mark() == "]" and number == 0:
            mark = "]"
            break
        number += 1
        entry, end = _entry(rest, name, number, decoder)
        size, rest.at = end - rest.at, end
        yield entry, size
        mark = rest.mark()
    rest.at += 1
    if mark != "]" or rest.mark():
        what = "follows the array" if mark == "]" else f"but a comma or the array's end follows item {number}"
        raise DataError(f"{name} is not JSON: something {what}", FIX)


def _entry(rest: _Unparsed, name: str, number: int, decoder: _Decoder) -> tuple[Any, int]:
    """Return (the entry at rest.at, its end in rest.read)."""

    def decode(text: str) -> tuple[Any, int] | None:
        try:
            return decoder.raw_decode(text, rest.at)
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated") or error.pos >= len(text) - LONGEST_TOKEN
            if rest.is_end or not is_cut:
                # the error's own line counts from some place in the file
                raise ValueError(error.msg) from error
            return None

    while True:
        found: tuple[Any, int] | None = _parsed(rest.read, f"{name} item {number}", decode)
        # the end of what was read may cut a number
        if found and (found[1] < len(rest.read) or rest.is_end):
            return found
        if len(rest.read) - rest.at > max_cell():
            raise too_long(f"{name} item {number}")
        rest.more()


def _parsed(text: str, where: str, decode: Callable[[str], Any]) -> Any:
    try:
        return decode(text)
    except ValueError as error:
        raise DataError(f"{where} is not JSON: {error}", FIX) from error
    except RecursionError as error:
        raise _too_deep(where) from error


def _too_deep(where: str) -> DataError:
    return DataError(f"{where} is nested too deeply", "give lists and objects of some hundred levels at most")


def _object(entry: Any, where: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise DataError(f"{where} is not an object: {json.dumps(entry)[:80]}", "give objects: {...}")
    return entry
