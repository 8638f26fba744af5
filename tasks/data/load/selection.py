"""Choose rows by the hashes of their texts: make splits, find duplicates and texts that splits share, draw samples. Pure
functions of hashes and seeds.

A row's hash is 64 bits of blake2b over its texts (probability of a false duplicate among a million rows: 3 in 10^8).
Splits are made by hash, so rows with equal text are in the same split, and appended rows do not move other rows.
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
    """Return a hash of each row over its values in all the given columns together, uint64 [rows]. A value that is not a
    string is hashed as its JSON text. Rows with equal values have equal hashes."""
    import numpy as np

    values = [column.to_pylist() for column in columns]
    digests = (hashlib.blake2b(_bytes(row), digest_size=8).digest() for row in zip(*values, strict=True))
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _bytes(row: tuple[Any, ...]) -> bytes:
    texts = (v if isinstance(v, str) else json.dumps(v, sort_keys=True, default=str) for v in row)
    return "\x1f".join(texts).encode("utf-8", "surrogatepass")


def made_splits(hashes: Hashes, fractions: Mapping[str, float], seed: int) -> dict[str, Mask]:
    """Divide rows into splits by hashes of their text. hashes: uint64 [rows], from `row_hashes`; fractions: {split: its
    fraction of the rows}, without train.

    Returns {split: bool [rows], True for the rows of the split}, with all other rows under "train". A row's split
    depends only on its text and the seed: equal texts stay together, and appended rows do not move other rows. Sizes
    follow the fractions up to chance, with a standard deviation of sqrt(rows x fraction x (1 - fraction)) rows. A split
    that would be empty takes one text from train."""
    import numpy as np

    ranks = _seeded(hashes, seed)
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
    """Divide rows into splits by seeded hashes of their text, such that each split gets the same fraction of each
    label's rows, rounded to whole rows. Returns {split: bool [rows], True for the rows of the split}, with all other
    rows under "train".

    hashes: uint64 [rows], from `row_hashes`; labels: int32 [rows], label ids; fractions: {split: its fraction of the
    rows}, at most two splits, without train. Rows with equal text stay together. A text counts under the label of its
    first row. The texts of a label are ordered by the seeded hash. The first split takes texts from the front of this
    order, the second split from the back, each until it has its number of rows; train keeps at least one text. Where
    texts repeat, a split may be a row or two short. If rows are appended to the data, about sqrt(fraction x appended)
    of the earlier rows of a label change their split, never more than were appended. Memory: 60 bytes a row."""
    import numpy as np

    texts, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    counts = np.bincount(which, minlength=len(texts))
    ranks, owner = _seeded(texts, seed), labels[first]
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


def _seeded(hashes: Hashes, seed: int) -> Hashes:
    """Map hashes to other 64-bit numbers by a bijection that depends on the seed (splitmix64's finisher). Equal hashes
    stay equal; the order of different hashes changes."""
    import numpy as np

    mixed: Hashes = hashes ^ np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    return mixed


def repeated(hashes: Hashes) -> Mask:
    """Return bool [rows]: True for each row whose hash (and therefore text) occurs in an earlier row."""
    import numpy as np

    mask = np.ones(len(hashes), dtype=bool)
    mask[np.unique(hashes, return_index=True)[1]] = False
    return mask


def repetitions(hashes: Hashes) -> int:
    """Return the number of rows whose hash occurs in an earlier row, that is the number of rows that `repeated` marks.
    Takes 8 bytes of memory a row; `repeated` takes 40."""
    import numpy as np

    ordered = np.sort(hashes)
    return int((ordered[1:] == ordered[:-1]).sum())


def shared_rows(hashes: Mapping[str, Hashes]) -> dict[tuple[str, str], Mask]:
    """Find the rows whose text occurs in two splits, or in two sources (data sets). hashes: {split or source: uint64
    [rows]}.

    Returns {(first, second): bool [rows of the first]} for each pair in the order of `hashes`: True where a row's text
    also occurs in the second."""
    names = list(hashes)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    return {(a, b): _contained(hashes[a], hashes[b]) for a, b in pairs}


def _contained(values: Hashes, others: Hashes) -> Mask:
    """Return bool [values]: True where a value occurs in `others`. Takes 8 bytes for each of `others`; numpy's isin
    takes 30."""
    import numpy as np

    ordered, found = np.sort(others), np.zeros(len(values), dtype=bool)
    for start in range(0, len(values), _BLOCK) if len(others) else ():
        some = values[start : start + _BLOCK]
        places = np.searchsorted(ordered, some)
        found[start : start + _BLOCK] = ordered[np.minimum(places, len(ordered) - 1)] == some
    return found


def limited(keep: Mask, limit: int, seed: int, split: str) -> Mask:
    """Return the mask `keep` (bool [rows], True for the rows of a split to keep) reduced to a random sample of at most
    `limit` of the rows that it picks. `keep` itself is not changed.

    seed, split: together seed the sample. With the same seed, the sample of a smaller limit is a subset of that of a
    larger one."""
    import numpy as np

    rows = np.flatnonzero(keep)
    if len(rows) <= limit:
        return keep
    generator = np.random.default_rng([seed, *split.encode()])
    mask = np.zeros_like(keep)
    mask[rows[generator.permutation(len(rows))[:limit]]] = True
    return mask


def all_rows(hashes: Hashes) -> Mask:
    """Return a mask, bool [hashes], that picks every row."""
    import numpy as np

    return np.ones(len(hashes), dtype=bool)


def union_of(masks: Iterable[Mask], like: Mask) -> Mask:
    """Return bool [rows]: True where any of the masks is True. like: a mask of the same shape, whose values are not
    read; it gives the result's shape when `masks` is empty."""
    import numpy as np

    return np.asarray(np.logical_or.reduce([np.zeros_like(like), *masks]))


def narrowed(outer: Mask, inner: Mask) -> Mask:
    """Return the mask of the rows that both masks pick, where `inner` has one entry for each row that `outer` picks.

    outer: bool [rows]; inner: bool [rows that `outer` picks]; result: bool [rows]."""
    mask = outer.copy()
    mask[outer] = inner
    return mask
