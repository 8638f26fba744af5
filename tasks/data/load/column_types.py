"""Find one type for a column that files store differently, and convert its values. A nested column becomes JSON text."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from trnflow.tasks.errors import DataError

encode_json = json.JSONEncoder(ensure_ascii=False).encode


def is_nested(kind: pa.DataType) -> bool:
    """Return whether values are lists, objects or JSON text."""
    return isinstance(kind, pa.JsonType) or pa.types.is_nested(kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without dictionary encoding, views and 64-bit offsets; `json` for a nested one."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    # Arrow's structs would give every row the keys of all rows
    return pa.json_() if is_nested(kind) else kind


def common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return a type that holds both types' values, `json` if one is nested; None for a conflict."""
    kinds = [plain_type(first), plain_type(second)]
    if pa.json_() in kinds:
        return pa.json_()
    try:
        both = pa.unify_schemas([pa.schema([("", kind)]) for kind in kinds], promote_options="permissive")
    except pa.ArrowTypeError:
        return None
    return both.field(0).type


def to_type(values: pa.Array, kind: pa.DataType, name: str, where: str, before: int) -> pa.Array:
    """Convert a column's values to a type of `plain_type` or `common_type`.

    before: the file's rows before `values`. Raises DataError with the row of the first value that does not fit.
    """
    problems = (pa.ArrowException, TypeError, ValueError)
    try:
        return _converted(values, kind)
    except problems:
        for number in range(len(values)):
            try:
                _converted(values.slice(number, 1), kind)
            except problems as error:
                what = f": {error}" if is_nested(kind) else f" is {values[number]}, which is no {kind}"
                raise DataError(
                    f"{where} row {before + number + 1}: {name}{what}",
                    "change the column in the file, or name those to keep with data.columns",
                ) from error
        raise


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind:
        return values
    if pa.types.is_dictionary(values.type):
        return _converted(values.dictionary_decode(), kind)
    if not is_nested(kind):
        return values.cast(kind)
    unpack = _unpacker(values.type)
    texts = [None if value is None else encode_json(unpack(value)) for value in values.to_pylist()]
    return pa.ExtensionArray.from_storage(kind, pa.array(texts, pa.string()))


def _unpacker(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that turns a value into one that JSON can represent; it raises TypeError or ValueError."""
    if isinstance(kind, pa.JsonType):
        return json.loads
    if pa.types.is_struct(kind):
        fields = [(field.name, _unpacker(field.type)) for field in kind]
        # Parquet does not tell a null field from a missing one
        return lambda value: {name: unpack(value[name]) for name, unpack in fields if value[name] is not None}
    if pa.types.is_map(kind):
        unpack_entry = _unpacker(kind.item_type)
        return lambda pairs: json_object(
            [(key, None if value is None else unpack_entry(value)) for key, value in pairs]
        )
    if pa.types.is_nested(kind):
        unpack_entry = _unpacker(kind.value_type)
        return lambda values: [None if value is None else unpack_entry(value) for value in values]
    return _scalar


def _scalar(value: Any) -> Any:
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    if not isinstance(value, str | int | float):
        raise TypeError(f"JSON has no type for {type(value).__name__}")
    return value


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict of pairs. Raises ValueError for a key that occurs twice."""
    entries = dict(pairs)
    # one of the values would be lost
    if len(entries) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")
    return entries
