"""Which rows a split keeps: made splits, duplicates and leaks, limits. Pure functions of row hashes and seeds.

A row's hash is 64 bits of blake2b over its texts (a false duplicate among a million rows: 3 in 10^8). Splits are made
by hash, so equal texts land on the same side, and appended rows move no others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Hashes = np.ndarray[Any, np.dtype[np.uint64]]
    Mask = np.ndarray[Any, np.dtype[np.bool_]]
    Ids = np.ndarray[Any, np.dtype[np.int32]]


_BLOCK = 1 << 16


def row_hashes(columns: Iterable[pa.Array]) -> Hashes:
    """uint64 [rows] over the columns' values; what is not a string counts as its canonical JSON."""
    import numpy as np

    values = [column.to_pylist() for column in columns]
    digests = (hashlib.blake2b(_bytes(row), digest_size=8).digest() for row in zip(*values, strict=True))
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _bytes(row: tuple[Any, ...]) -> bytes:
    texts = (v if isinstance(v, str) else json.dumps(v, sort_keys=True, default=str) for v in row)
    return "\x1f".join(texts).encode("utf-8", "surrogatepass")


def made_splits(hashes: Hashes, fractions: Mapping[str, float], seed: int) -> dict[str, Mask]:
    """Masks over the rows, disjoint and complete: `fractions` of them by name, the rest as "train".

    A row's side depends on its text and the seed alone, so equal texts are never divided, and rows that are appended move
    no other: what was held out once is held out for good. Sizes are therefore the fractions but for chance, sqrt(rows x
    fraction x (1 - fraction)) rows; a split that chance leaves empty takes the nearest text of train.
    """
    import numpy as np

    ranks = _mixed(hashes, seed)
    masks, train, low = {}, np.ones(len(ranks), dtype=bool), 0
    for name, fraction in fractions.items():
        high = low + int(fraction * 2**64)
        masks[name] = (ranks >= np.uint64(low)) & (ranks < np.uint64(high))
        train &= ~masks[name]
        low = high
    for mask in masks.values():
        if not mask.any() and train.any():
            mask |= ranks == ranks[train].min()
            train &= ~mask
    return {"train": train, **masks}


def stratified_splits(hashes: Hashes, labels: Ids, fractions: Mapping[str, float], seed: int) -> dict[str, Mask]:
    """As `made_splits`, but each label's share is exact: `fraction` of its rows, rounded, as far as equal texts let it.

    A text belongs to the label of its first row. Within a label, texts stand in the order of the same seeded hash; the first
    split takes from the front, the second from the back, up to its count, so a text that would exceed it is left to train
    (a row or two, where texts repeat). Appended rows may move others: those between where a count ended before and where it
    ends now, about sqrt(fraction x appended) of a label's rows and never more than were appended. A label keeps a text in
    train. At most two fractions. Costs some 60 bytes a row while it works."""
    import numpy as np

    texts, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    counts = np.bincount(which, minlength=len(texts))
    ranks, owner = _mixed(texts, seed), labels[first]
    side = np.zeros(len(texts), dtype=np.int8)
    for label in np.unique(owner):
        mine = np.flatnonzero(owner == label)
        mine = mine[np.argsort(ranks[mine])]
        for number, fraction in enumerate(fractions.values(), 1):
            free = mine[side[mine] == 0][:-1] if number == 1 else mine[side[mine] == 0][:0:-1]
            wanted = int(fraction * counts[mine].sum() + 0.5)
            side[free[np.cumsum(counts[free]) <= wanted]] = number
    sides = side[which]
    return {name: sides == number for number, name in enumerate(("train", *fractions))}


def _mixed(hashes: Hashes, seed: int) -> Hashes:
    """A seeded bijection of 64 bits (splitmix64's finisher), so that ranks of equal rows stay equal."""
    import numpy as np

    mixed: Hashes = hashes ^ np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    return mixed


def repeated(hashes: Hashes) -> Mask:
    """True for each row whose text stood in an earlier row."""
    import numpy as np

    mask = np.ones(len(hashes), dtype=bool)
    mask[np.unique(hashes, return_index=True)[1]] = False
    return mask


def shared_rows(hashes: Mapping[str, Hashes]) -> dict[tuple[str, str], Mask]:
    """For each pair of splits, the rows of the first whose text also stands in the second."""
    names = list(hashes)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    return {(a, b): _among(hashes[a], hashes[b]) for a, b in pairs}


def _among(values: Hashes, others: Hashes) -> Mask:
    """As numpy's isin, which needs 30 bytes a row: here 8 for each of `others`."""
    import numpy as np

    ordered, found = np.sort(others), np.zeros(len(values), dtype=bool)
    for start in range(0, len(values), _BLOCK) if len(others) else ():
        some = values[start : start + _BLOCK]
        places = np.searchsorted(ordered, some)
        found[start : start + _BLOCK] = ordered[np.minimum(places, len(ordered) - 1)] == some
    return found


def limited(keep: Mask, limit: int, seed: int, split: str) -> Mask:
    """`keep` with at most `limit` rows left: a seeded sample, in the rows' own order; a smaller limit is a subset."""
    import numpy as np

    rows = np.flatnonzero(keep)
    if len(rows) <= limit:
        return keep
    generator = np.random.default_rng([seed, *split.encode()])
    mask = np.zeros_like(keep)
    mask[rows[generator.permutation(len(rows))[:limit]]] = True
    return mask


def all_rows(hashes: Hashes) -> Mask:
    """A mask that keeps every row."""
    import numpy as np

    return np.ones(len(hashes), dtype=bool)


def any_of(masks: Iterable[Mask], like: Mask) -> Mask:
    """Rows in any of the masks; `like` gives the shape when there is none."""
    import numpy as np

    return np.asarray(np.logical_or.reduce([np.zeros_like(like), *masks]))


def within(outer: Mask, inner: Mask) -> Mask:
    """`inner`, a mask over the rows that `outer` keeps, as a mask over all rows."""
    mask = outer.copy()
    mask[outer] = inner
    return mask
