"""Find one type for a column that files store differently, and convert its values. A nested column becomes JSON text."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trnflow.tasks.data.texts import text_of
from trnflow.tasks.errors import DataError
from trnflow.tasks.system.json_numbers import WrittenNumber, dumps, loads

encode_json = json.JSONEncoder(ensure_ascii=False).encode


class _Number(pa.ExtensionScalar):  # type: ignore[misc]
    def as_py(self, **options: Any) -> Any:
        """Return an int, a float or a WrittenNumber."""
        return None if self.value is None else loads(self.value.as_py())


class WrittenNumbers(pa.ExtensionType):  # type: ignore[misc]
    """Numbers of a JSON file, as the texts that it has.

    are_floats: Whether Python writes them as floats with these texts.
    """

    def __init__(self, *, are_floats: bool) -> None:
        self.are_floats = are_floats
        super().__init__(pa.string(), "trnflow.written_numbers")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"floats" if self.are_floats else b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> WrittenNumbers:
        return cls(are_floats=serialized == b"floats")

    def __arrow_ext_scalar_class__(self) -> type[pa.ExtensionScalar]:
        return _Number

    def of(self, texts: list[str | None]) -> pa.Array:
        """Return an array of this type."""
        return pa.ExtensionArray.from_storage(self, pa.array(texts, pa.string()))


def is_nested(kind: pa.DataType) -> bool:
    """Return whether values are lists, objects or JSON text."""
    return isinstance(kind, pa.JsonType) or pa.types.is_nested(kind)


_TEXTS = (
    pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary, pa.types.is_large_binary,
    pa.types.is_binary_view, pa.types.is_fixed_size_binary, pa.types.is_temporal, pa.types.is_interval,
)  # fmt: skip
"""What tells types that become text: bytes must be UTF-8, of dates and times it is what `str` gives."""


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return what a column of this type becomes: booleans, numbers, strings, or `json` for a nested one."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.UuidType) or any(is_text(kind) for is_text in _TEXTS):
        return pa.string()
    if isinstance(kind, pa.Bool8Type):
        return pa.bool_()
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.JsonType | WrittenNumbers):
        return plain_type(kind.storage_type)
    if pa.types.is_floating(kind):
        return pa.float64()
    # Arrow's structs would give every row the keys of all rows
    return pa.json_() if is_nested(kind) else kind


def text_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column whose values are read as texts or labels, such as `plain_type`'s: written numbers are texts."""
    kind = plain_type(kind)
    return pa.string() if isinstance(kind, WrittenNumbers) else kind


def common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return a type that holds both types' values, `json` if one is nested; None for a conflict."""
    kinds = [plain_type(first), plain_type(second)]
    if pa.json_() in kinds:
        return pa.json_()
    written = [kind for kind in kinds if isinstance(kind, WrittenNumbers)]
    if written and all(map(_is_number, kinds)):
        return WrittenNumbers(are_floats=all(map(_are_floats, kinds)))
    try:
        both = pa.unify_schemas([pa.schema([("", kind)]) for kind in kinds], promote_options="permissive")
    except pa.ArrowTypeError:
        return None
    return both.field(0).type


def _is_number(kind: pa.DataType) -> bool:
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    return isinstance(kind, WrittenNumbers) or any(is_number(kind) for is_number in numbers)


def _are_floats(kind: pa.DataType) -> bool:
    return kind.are_floats if isinstance(kind, WrittenNumbers) else kind in (pa.float64(), pa.null())


def to_type(values: pa.Array, kind: pa.DataType, name: str, where: str, before: int) -> pa.Array:
    """Convert a column's values to a type of `plain_type`, `text_type` or `common_type`; NaN becomes null.

    before: the file's rows before `values`. Raises DataError with the row of the first value that does not fit.
    """
    problems = (pa.ArrowException, TypeError, ValueError, OverflowError, LookupError)
    try:
        return _converted(values, kind)
    except problems:
        for number in range(len(values)):
            try:
                _converted(values.slice(number, 1), kind)
            except problems as error:
                what = f": {error}" if is_nested(kind) else f" {_shown(values[number])}, which is no {kind}"
                raise DataError(
                    f"{where} row {before + number + 1}: {name}{what}",
                    "change the column in the file, or name those to keep with data.columns",
                ) from error
        raise


def _shown(value: pa.Scalar) -> str:
    try:
        return f"is {str(value)[:80]}"
    except (ValueError, OverflowError, LookupError):
        return f"holds a {value.type} beyond what Python has"


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        return _converted(values.dictionary_decode(), kind)
    if pa.types.is_run_end_encoded(values.type):
        return _converted(pc.run_end_decode(values), kind)
    if isinstance(values.type, pa.Bool8Type):
        return _converted(values.storage.cast(pa.bool_()), kind)
    if isinstance(values.type, WrittenNumbers) and is_nested(kind):
        return pa.ExtensionArray.from_storage(kind, values.storage)
    if isinstance(values.type, pa.BaseExtensionType) and not isinstance(values.type, pa.JsonType | pa.UuidType):
        return _converted(values.storage, kind)
    if is_nested(kind):
        return values if values.type == kind else _json_texts(values, kind)
    if pa.types.is_string(kind):
        return _texts(values)
    if pa.types.is_floating(values.type) and values.type != pa.float64():
        values = _texts(values)  # 0.1 of 32 bits is 0.1, not 0.10000000149011612
    return _without_nan(values.cast(kind))


def _without_nan(values: pa.Array) -> pa.Array:
    is_nan = pc.is_nan(values) if pa.types.is_floating(values.type) else None
    return pc.if_else(is_nan, pa.scalar(None, values.type), values) if is_nan and is_nan.true_count else values


def _texts(values: pa.Array) -> pa.Array:
    """Return values as strings: numbers and times as Python and pandas write them."""
    kind = values.type
    if pa.types.is_floating(kind):
        # `str` of numpy's scalars is the shortest text of the type
        texts = pa.array(map(str, values.to_numpy(zero_copy_only=False)), pa.string())
        return pc.if_else(_without_nan(values).is_valid(), texts, pa.scalar(None, pa.string()))
    if pa.types.is_time64(kind) and kind.unit == "ns":  # Python's times have no nanoseconds
        texts = values.cast(pa.string())
        return pc.replace_substring_regex(pc.replace_substring_regex(texts, "000$", ""), r"\.000000$", "")
    written_by_python = (pa.types.is_temporal, pa.types.is_interval, pa.types.is_decimal)
    if any(is_one(kind) for is_one in written_by_python) or isinstance(kind, pa.UuidType):
        return pa.array([None if value is None else text_of(value) for value in values.to_pylist()], pa.string())
    return values.cast(pa.string())


def _json_texts(values: pa.Array, kind: pa.DataType) -> pa.Array:
    # only these types have written numbers, and `dumps` takes a fifth longer
    has_written = re.search("decimal|json", str(values.type))
    unpack, encode = _unpacker(values.type), partial(dumps, ensure_ascii=False) if has_written else encode_json
    texts = [None if value is None else encode(unpack(value)) for value in values.to_pylist()]
    return pa.ExtensionArray.from_storage(kind, pa.array(texts, pa.string()))


def _unpacker(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that turns a value into one that JSON can represent; it raises TypeError or ValueError."""
    if isinstance(kind, pa.JsonType):
        return loads
    if pa.types.is_struct(kind):
        fields = [(field.name, _unpacker(field.type)) for field in kind]
        # Parquet does not tell a null field from a missing one
        return lambda value: {name: unpack(value[name]) for name, unpack in fields if value[name] is not None}
    if pa.types.is_map(kind):
        unpack_entry = _unpacker(kind.item_type)
        return lambda pairs: json_object(
            [(key, None if value is None else unpack_entry(value)) for key, value in pairs]
        )
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        unpack_entry = _unpacker(kind.value_type)
        return lambda values: [None if value is None else unpack_entry(value) for value in values]
    return _scalar


def _scalar(value: Any) -> Any:
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Decimal):
        return WrittenNumber(f"{value:f}")
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
