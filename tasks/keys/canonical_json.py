"""Canonical JSON: each value has exactly one text, so values are equal (in value and type) exactly if their texts, and
therefore their digests, are equal.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator

from tasks.artifact import Json

_SCALARS = frozenset((str, int, bool, float, type(None)))
_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode

_Piece = str | Iterator["_Piece"]


def canonical(value: Json) -> str:
    """Return the canonical JSON text of a value: keys sorted, no spaces; 1, 1.0 and true stay distinct at any depth.

    Raises:
        TypeError: a key is not a string, a number is not finite, or a value has a type that JSON does not have."""
    text: list[str] = []
    open_values = [_pieces(value)]  # a stack of iterators in place of recursion, which has a limit
    while open_values:
        piece = next(open_values[-1], None)
        if piece is None:
            open_values.pop()
        elif isinstance(piece, str):
            text.append(piece)
        else:
            open_values.append(piece)
    return "".join(text)


def digest_of(value: Json) -> str:
    """Return `sha256:<hex>` of the canonical JSON text of a value. Raises TypeError as `canonical` does."""
    return f"sha256:{hashlib.sha256(canonical(value).encode()).hexdigest()}"


def _pieces(value: Json) -> Iterator[_Piece]:
    """Yield the text of a value in pieces. A nested list or object is yielded as an iterator of its own pieces."""
    if isinstance(value, dict):
        yield from _object_pieces(value)
    elif isinstance(value, list | tuple):
        yield from _list_pieces(value)
    else:
        _check_scalar(value)
        yield _dumps(value)


def _object_pieces(value: dict[str, Json]) -> Iterator[_Piece]:
    for name in value:
        if type(name) is not str:
            raise TypeError(f"a key document can't hold the key {name!r} of type {type(name).__name__}: only strings")
    if _are_scalars(value.values()):
        yield _dumps(value)  # at C's speed
        return
    yield "{"
    for index, name in enumerate(sorted(value)):
        yield f"{',' if index else ''}{_dumps(name)}:"
        yield _pieces(value[name])
    yield "}"


def _list_pieces(value: list[Json] | tuple[Json, ...]) -> Iterator[_Piece]:
    if _are_scalars(value):
        yield _dumps(value)  # at C's speed
        return
    yield "["
    for index, item in enumerate(value):
        if index:
            yield ","
        yield _pieces(item)
    yield "]"


def _are_scalars(values: Iterable[Json]) -> bool:
    """Return whether all values are scalars. TypeError for a number that is not finite."""
    if not _SCALARS.issuperset(map(type, values)):
        return False
    for item in values:
        _check_scalar(item)
    return True


def _check_scalar(value: Json) -> None:
    if type(value) not in _SCALARS:
        raise TypeError(f"a key document can't hold a value of type {type(value).__name__}: {value!r}")
    if type(value) is float and not math.isfinite(value):
        raise TypeError(f"a key document can't hold {value}: numbers must be finite")
