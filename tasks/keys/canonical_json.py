"""Canonical JSON: equal values (of equal types), and no others, have equal texts and digests."""

from __future__ import annotations

import hashlib
import json
import math

from trnflow.tasks.artifact import Json

_SCALARS = frozenset((str, int, bool, float, type(None)))
_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical(value: Json) -> str:
    """Return the canonical JSON of a value: sorted keys, no spaces; 1, 1.0 and true stay distinct.

    Raises TypeError for a key that is no string, a number that is not finite, or deep nesting (about 1,000 levels).
    """
    _check(value)
    try:
        return _dumps(value)
    except RecursionError:
        raise TypeError("a key document can't hold a value that is nested this deeply") from None


def digest_of(value: Json) -> str:
    """Return `sha256:<hex>` of the canonical JSON of a value. Raises TypeError."""
    return f"sha256:{hashlib.sha256(canonical(value).encode()).hexdigest()}"


def _check(value: Json) -> None:
    """Raise TypeError for a value that is not JSON."""
    pending = [value]
    while pending:
        part = pending.pop()
        kind = type(part)
        if kind is float and not math.isfinite(part):
            raise TypeError(f"a key document can't hold {part}: numbers must be finite")
        if kind in _SCALARS:
            continue
        if isinstance(part, dict):
            for name in part:
                # `json` would write the keys 1 and "1" alike
                if type(name) is not str:
                    raise TypeError(f"a key document can't hold the key {name!r}: only strings")
            pending.extend(part.values())
        elif isinstance(part, list | tuple):
            pending.extend(part)
        else:
            raise TypeError(f"a key document can't hold a value of type {kind.__name__}: {part!r}")
