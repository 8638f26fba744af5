"""Find one type for a column that several files may store differently, and convert the column's values to that type.

A nested column (lists, structs, maps) gets Arrow's type `json` while rows are loaded: each value is JSON text with the
keys, their order and the number types of the source. Arrow's structs would instead give every row the keys of all rows.
A field of a struct that is null is left out of the JSON text, because Parquet does not distinguish a null field from a
missing field.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trnflow.tasks.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

encode_json = json.JSONEncoder(ensure_ascii=False).encode


def is_nested(kind: pa.DataType) -> bool:
    """Return whether the values of an Arrow type are lists, objects (structs, maps) or JSON text of Arrow's type
    `json`."""
    import pyarrow as pa

    return isinstance(kind, pa.JsonType) or pa.types.is_nested(kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Simplify an Arrow type, so that columns with equal values have equal types in all files: remove dictionary
    encoding, string views and 64-bit offsets. Nested types become `json`."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return pa.json_() if is_nested(kind) else kind


def common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return an Arrow type that can hold the values of both types: `json` if one of them is nested (lists or objects),
    the wider type for two number types. Return None if the two types conflict, such as text and number."""
    import pyarrow as pa

    kinds = [plain_type(first), plain_type(second)]
    if pa.json_() in kinds:
        return pa.json_()
    try:
        both = pa.unify_schemas([pa.schema([("", kind)]) for kind in kinds], promote_options="permissive")
    except pa.ArrowTypeError:
        return None
    return both.field(0).type


def to_type(values: pa.Array, kind: pa.DataType, name: str, where: str, before: int) -> pa.Array:
    """Convert values of a column to the Arrow type `kind`, which `plain_type` or `common_type` returned, and return
    them as a new array.

    Args:
        name: the column's name, for errors.
        where: the file's name, for errors.
        before: how many rows of the file precede `values`.

    Raises DataError that names the row of the first value that the type can't hold.
    """
    import pyarrow as pa

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
    import pyarrow as pa

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
    """Return a function that turns a Python value of this type (except None) into a value that JSON can represent. The
    function raises TypeError or ValueError."""
    import pyarrow as pa

    if isinstance(kind, pa.JsonType):
        return json.loads
    if pa.types.is_struct(kind):
        fields = [(field.name, _unpacker(field.type)) for field in kind]
        return lambda value: {name: unpack(value[name]) for name, unpack in fields if value[name] is not None}
    if pa.types.is_map(kind):
        item = _unpacker(kind.item_type)
        return lambda pairs: json_object([(key, None if value is None else item(value)) for key, value in pairs])
    if pa.types.is_nested(kind):
        item = _unpacker(kind.value_type)
        return lambda values: [None if value is None else item(value) for value in values]
    return _dated if pa.types.is_temporal(kind) else _scalar


def _dated(value: Any) -> str:
    text = getattr(value, "isoformat", None)
    return str(text()) if text else _scalar(value)


def _scalar(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise TypeError(f"JSON has no type for {type(value).__name__}")
    return value


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict of (key, value) pairs. Raises ValueError for a key that occurs twice, because one of its values would
    be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")
    return found
