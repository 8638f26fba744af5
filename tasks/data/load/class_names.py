"""The names of classes in lists of their numbers, as `datasets` declares them (a sequence of `ClassLabel`)."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from trnflow.tasks.errors import DataError


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return {column of lists of integers: names by number}."""
    info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = info.get("info", {}).get("features", {})
    found = {column: _element(features.get(column)) for column in schema.names}
    return {column: names for column, names in found.items() if names and _holds_integers(schema.field(column).type)}


def _element(feature: Any) -> list[str]:
    """Return the names of a list's classes. A list is {"_type": "List" or "Sequence", "feature": ...}, or [...]."""
    inner = feature[0] if isinstance(feature, list) and feature else feature
    if isinstance(feature, dict):
        inner = feature.get("feature") if feature.get("_type") in ("List", "LargeList", "Sequence") else None
    declared = inner.get("names") if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" else None
    return [str(name) for name in declared or ()]


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
                raise DataError(
                    f"{where.format(row)} holds {number}, and its classes are numbered 0 to {len(names) - 1}",
                    "repair the row, or the names in the file's metadata",
                )
        rows.append(numbers and [None if number is None else names[number] for number in numbers])
    return pa.array(rows, pa.list_(pa.string()))
