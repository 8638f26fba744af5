"""The names of classes that a file's numbers stand for, as `datasets` declares them (`ClassLabel`) in the file's metadata."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import DataError

UNLABELLED = -1
"""The number that `datasets` and the benchmark GLUE give rows without a label."""


def declared_classes(schema: pa.Schema, column: str) -> list[str] | None:
    """Return the names by number of a column's classes; None without names."""
    return (_names(_features(schema).get(column)) if schema.get_field_index(column) >= 0 else []) or None


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return {column of lists of integers: names by number}."""
    features = _features(schema)
    found = {column: _names(_element(features.get(column))) for column in schema.names}
    return {column: names for column, names in found.items() if names and _holds_integers(schema.field(column).type)}


def _features(schema: pa.Schema) -> Meta:
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b""))["info"]["features"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _element(feature: Any) -> Any:
    """Return what a list holds. A list is {"_type": "List" or "Sequence", "feature": ...}, or [...]."""
    if isinstance(feature, dict):
        return feature.get("feature") if feature.get("_type") in ("List", "LargeList", "Sequence") else None
    return feature[0] if isinstance(feature, list) and feature else None


def _names(feature: Any) -> list[str]:
    declared = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return [str(name) for name in declared] if isinstance(declared, list) else []


def _holds_integers(kind: pa.DataType) -> bool:
    lists = (pa.types.is_list(kind), pa.types.is_large_list(kind), pa.types.is_fixed_size_list(kind))
    return any(lists) and pa.types.is_integer(kind.value_type)


def named(values: pa.Array, names: list[str], where: str, before: int) -> pa.Array:
    """Return lists of names for lists of numbers. where: with a place for the row's number. Raises DataError for a number
    without a name."""
    rows: list[list[str | None] | None] = []
    for row, numbers in enumerate(values.to_pylist(), before + 1):
        for number in numbers or ():
            if number is not None and not 0 <= number < len(names):
                raise _beyond(number, names, where.format(row))
        rows.append(numbers and [None if number is None else names[number] for number in numbers])
    return pa.array(rows, pa.list_(pa.string()))


def class_texts(values: pa.Array, names: list[str] | None, where: str, before: int) -> pa.Array:
    """Return names for integers, null for UNLABELLED; other values, or all without names, as they are. Otherwise as `named`."""
    if names is None or not pa.types.is_integer(values.type):
        return values
    numbers = values.cast(pa.float64(), safe=False)  # which holds integers of all types, large ones about
    numbers = pc.if_else(pc.equal(numbers, UNLABELLED), pa.scalar(None, pa.float64()), numbers)
    beyond = pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, len(names)))
    if (row := beyond.index(True).as_py()) >= 0:
        raise _beyond(values[row].as_py(), names, where.format(before + row + 1))
    return pa.array(names, pa.string()).take(numbers.cast(pa.int64()))


def _beyond(number: int, names: list[str], where: str) -> DataError:
    return DataError(
        f"{where} holds {number}, and its classes are numbered 0 to {len(names) - 1}",
        "repair the row, or the names in the file's metadata",
    )
