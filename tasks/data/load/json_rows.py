"""Read JSON files, one object a line or one array of objects; a missing key is null, and so is NaN."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from trnflow.tasks.data.load.column_types import WrittenNumbers, encode_json, is_nested, json_object
from trnflow.tasks.data.load.streams import file_errors, lines, open_stream, open_text
from trnflow.tasks.errors import DataError
from trnflow.tasks.system.json_numbers import CONSTANTS, WrittenNumber, as_written, dumps

Encode = Callable[[Any], str]
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


def open_json(path: Path, name: str, size: int) -> tuple[pa.Schema, Callable[[list[str]], Iterator[pa.RecordBatch]]]:
    """Open a JSON file; return its schema, in the order in which columns occur, and a function from column names to
    batches of `size` rows. Raises DataError with file and row or line."""
    kinds: dict[str, dict[type, None]] = {}
    first = _Decoder()
    # read twice: a column's type depends on all rows
    for row in _objects(path, name, first):
        for key, value in row.items():
            kind = type(value)
            if kind is int and not -LARGEST <= value < LARGEST:
                kind = WrittenNumber
            if kind not in kinds.setdefault(key, {}):
                kinds[key][kind] = None
    schema = pa.schema([(key, _column_type([*values])) for key, values in kinds.items()])

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        objects, before = _objects(path, name, _Decoder(keeps_texts=first.has_written)), 0
        encode: Encode = partial(dumps, ensure_ascii=False) if first.has_written else encode_json
        while rows := list(islice(objects, size)):
            arrays = [_column(rows, key, schema.field(key).type, encode, name, before) for key in columns]
            yield pa.record_batch(arrays, names=columns)
            before += len(rows)

    return schema, batches


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
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        for number, value in enumerate(values, before + 1):
            where = f"{name} row {number}: {key}"
            try:
                _array([value], kind, encode)
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{where} holds {error.object[error.start : error.end]!a}, half a character",
                    "repair the row: such escapes (surrogates) come in pairs",
                ) from error
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


def _objects(path: Path, name: str, decoder: _Decoder) -> Iterator[dict[str, Any]]:
    with file_errors(name), open_stream(path, name) as raw:
        is_array = raw.peek(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["
    if is_array:
        with open_text(path, name) as text:
            entries = _parsed(text.read(), name, decoder)
        yield from (_object(entry, f"{name} item {number}") for number, entry in enumerate(entries, 1))
        return
    for number, line in lines(path, name):
        if line := line.strip():
            where = f"{name} line {number}"
            yield _object(_parsed(line, where, decoder), where)


def _parsed(text: str, where: str, decoder: _Decoder) -> Any:
    try:
        return decoder.decode(text)
    except ValueError as error:
        raise DataError(f"{where} is not JSON: {error}", "give one object a line, or one array of objects") from error
    except RecursionError as error:
        raise DataError(
            f"{where} is nested too deeply", "give lists and objects of some hundred levels at most"
        ) from error


def _object(entry: Any, where: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise DataError(f"{where} is not an object: {json.dumps(entry)[:80]}", "give objects: {...}")
    return entry
