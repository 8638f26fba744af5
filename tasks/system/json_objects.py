"""Read JSON that a disk, a kill or another writer may have damaged: objects, and whether their fields have their types."""

from __future__ import annotations

import json
import math
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

DEEPEST = 100
"""The most levels of a document: code that walks one by recursion never meets Python's limit."""
LARGEST = 1 << 63
"""Whole numbers are below: larger ones overflow where they become a float, a time or a pid."""


def read_object(data: bytes | str) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for anything else, and for more than DEEPEST levels."""
    document = parse_object(data)
    check_levels(document)
    return document


def parse_object(data: bytes | str) -> dict[str, Any]:
    """Parse a JSON object of any depth that Python can parse. Raises ValueError."""
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError(f"it has more than {DEEPEST} levels") from None
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def check_levels(document: Any) -> None:
    """Raise ValueError for a JSON value of more than DEEPEST levels."""
    level: list[Any] = [document]
    for _ in range(DEEPEST):
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"it has more than {DEEPEST} levels")


def parsed(line: bytes) -> dict[str, Any] | None:
    """Return a line's JSON object; None for anything else."""
    # a kill may leave the last line incomplete
    try:
        return read_object(line)
    except ValueError:
        return None


def misfit(value: Any, shape: Any, name: str = "it") -> str:
    """Return the first part of a JSON value that is not of its type, such as "stages[2].key is a list"; "" if none is.

    shape: a TypedDict, of which unknown fields are left alone, or `list[...]`, `dict[str, ...]`, a union, a Literal
    (other values of its type fit, too: a later version may write them), a scalar type, or Any.
    """
    kind = get_origin(shape) or shape
    if kind in (NotRequired, Required):
        return misfit(value, get_args(shape)[0], name)
    if kind in (Union, UnionType):
        found = [misfit(value, each, name) for each in get_args(shape)]
        return "" if "" in found else max(found, key=len)  # the longest names the innermost part
    if kind is Literal:
        types = {type(each) for each in get_args(shape)}
        return "" if type(value) in types else _is(name, value)
    if is_typeddict(kind):
        return _misfit_field(value, kind, name)
    if not _is_of(value, kind):
        return _is(name, value)
    inner = get_args(shape)
    if isinstance(value, list) and inner:
        return next(filter(None, (misfit(each, inner[0], f"{name}[{n}]") for n, each in enumerate(value))), "")
    if isinstance(value, dict) and inner and inner[1] is not Any:
        return next(filter(None, (misfit(each, inner[1], _below(name, key)) for key, each in value.items())), "")
    return ""


def _misfit_field(value: Any, shape: Any, name: str) -> str:
    if not isinstance(value, dict):
        return _is(name, value)
    hints, needed = _fields(shape)
    lacking = sorted(needed - value.keys())
    if lacking:
        return f"{name} has no {lacking[0]}"
    fields = hints.items()
    return next(filter(None, (misfit(value[key], hint, _below(name, key)) for key, hint in fields if key in value)), "")


@cache
def _fields(shape: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of a TypedDict's fields, and the names of those that it always has."""
    hints = get_type_hints(shape, include_extras=True)
    # of a module with postponed annotations `__required_keys__` has the fields marked NotRequired, too
    optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
    return hints, shape.__required_keys__ - optional


def _is_of(value: Any, kind: Any) -> bool:
    if kind is Any or (kind is None and value is None):
        return True
    if kind is float and isinstance(value, float):
        return math.isfinite(value)
    if kind in (int, float):
        return type(value) is int and abs(value) < LARGEST
    return isinstance(value, NoneType if kind is None else kind)


def _below(name: str, key: str) -> str:
    return key if name == "it" else f"{name}.{key}"


def _is(name: str, value: Any) -> str:
    words = {dict: "an object", list: "a list", str: "a text", bool: "true or false", NoneType: "null"}
    return f"{name} is {words.get(type(value)) or f'{value!r:.20}'}"
