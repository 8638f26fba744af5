"""Canonical JSON: each value has exactly one text, so values are equal (in value and type) exactly if their texts, and
therefore their digests, are equal.
"""

from __future__ import annotations

import hashlib
import json
import math

from trnflow.tasks.artifact import Json

_SCALARS = frozenset((str, int, bool, float, type(None)))
_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical(value: Json) -> str:
    """Return the canonical JSON text of a value: keys sorted, no spaces; 1, 1.0 and true stay distinct at any depth.

    Raises:
        TypeError: a key is not a string, a number is not finite, a value has a type that JSON does not have, or lists
            and objects are nested deeper than Python's json module can write (about 1,000 levels)."""
    _check(value)
    try:
        return _dumps(value)
    except RecursionError:
        raise TypeError("a key document can't hold a value that is nested this deeply") from None


def digest_of(value: Json) -> str:
    """Return `sha256:<hex>` of the canonical JSON text of a value. Raises TypeError as `canonical` does."""
    return f"sha256:{hashlib.sha256(canonical(value).encode()).hexdigest()}"


def _check(value: Json) -> None:
    """Raise TypeError for a value that `json` would refuse, or write as another value: the keys 1 and "1" alike."""
    pending = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is float and not math.isfinite(item):
            raise TypeError(f"a key document can't hold {item}: numbers must be finite")
        if kind in _SCALARS:
            continue
        if isinstance(item, dict):
            for name in item:
                if type(name) is not str:
                    raise TypeError(f"a key document can't hold the key {name!r}: only strings")
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)
        else:
            raise TypeError(f"a key document can't hold a value of type {kind.__name__}: {item!r}")
