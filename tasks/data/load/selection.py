"""Choose rows by the hashes of their texts: splits, duplicates, shared texts, samples. Pure functions.

Rows with equal text stay in one split, and appended rows move no others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Ids = np.ndarray[Any, np.dtype[np.int32]]

_BLOCK = 1 << 16


def row_hashes(columns: Iterable[pa.Array]) -> Hashes:
    """Return uint64 [rows], a hash over all given columns; a value that is no string counts as its JSON text."""
    values = [column.to_pylist() for column in columns]
    # 64 bits: a false duplicate among a million rows has a chance of 3 in 10^8
    digests = []
    for row in zip(*values, strict=True):
        texts = (value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str) for value in row)
        encoded = "\x1f".join(texts).encode("utf-8", "surrogatepass")
        digests.append(hashlib.blake2b(encoded, digest_size=8).digest())
    return np.frombuffer(b"".join(digests), dtype="<u8")


def made_splits(hashes: Hashes, fractions: Mapping[str, float], seed: int) -> dict[str, Mask]:
    """Divide rows into {split: bool [rows]} by text and seed, the rest under "train". fractions: {split: share}."""
    ranks = _seeded(hashes, seed)
    masks, train, low = {}, np.ones(len(ranks), dtype=bool), 0
    for name, fraction in fractions.items():
        high = low + int(fraction * 2**64)
        masks[name] = (ranks >= np.uint64(low)) & (ranks < np.uint64(high))
        train &= ~masks[name]
        low = high
    for mask in masks.values():
        # a split that would be empty takes a text from train
        if not mask.any() and train.any():
            mask |= ranks == ranks[train].min()
            train &= ~mask
    return {"train": train, **masks}


def stratified_splits(hashes: Hashes, labels: Ids, fractions: Mapping[str, float], seed: int) -> dict[str, Mask]:
    """Divide rows into splits with the same fraction of each label's rows; at most two besides train. Takes 60 bytes a
    row.

    Repeated texts may leave a split a row or two short.
    """
    texts, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    counts = np.bincount(which, minlength=len(texts))
    ranks, owner = _seeded(texts, seed), labels[first]
    side = np.zeros(len(texts), dtype=np.int8)
    for label in np.unique(owner):
        mine = np.flatnonzero(owner == label)
        # by seeded hash: appended rows move about sqrt(fraction x appended) rows of a label
        mine = mine[np.argsort(ranks[mine])]
        for number, fraction in enumerate(fractions.values(), 1):
            free = mine[side[mine] == 0][:-1] if number == 1 else mine[side[mine] == 0][:0:-1]
            wanted = int(fraction * counts[mine].sum() + 0.5)
            side[free[np.cumsum(counts[free]) <= wanted]] = number
    sides = side[which]
    return {name: sides == number for number, name in enumerate(("train", *fractions))}


def _seeded(hashes: Hashes, seed: int) -> Hashes:
    """Map hashes by a bijection that depends on the seed (splitmix64's finisher)."""
    mixed: Hashes = hashes ^ np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    return mixed


def repeated(hashes: Hashes) -> Mask:
    """Return bool [rows]: whether the hash occurs in an earlier row."""
    mask = np.ones(len(hashes), dtype=bool)
    mask[np.unique(hashes, return_index=True)[1]] = False
    return mask


def shared_rows(hashes: Mapping[str, Hashes]) -> dict[tuple[str, str], Mask]:
    """Return {(first, second): bool [rows of the first], text is in the second} for each pair."""
    return {(a, b): _contained(hashes[a], hashes[b]) for a, b in combinations(hashes, 2)}


def _contained(values: Hashes, others: Hashes) -> Mask:
    """Return bool [values]: whether a value is in `others`. Takes 8 bytes for each; numpy's isin 30."""
    ordered, contained = np.sort(others), np.zeros(len(values), dtype=bool)
    for start in range(0, len(values), _BLOCK) if len(others) else ():
        some = values[start : start + _BLOCK]
        places = np.searchsorted(ordered, some)
        contained[start : start + _BLOCK] = ordered[np.minimum(places, len(ordered) - 1)] == some
    return contained


def limited(keep: Mask, limit: int, seed: int, split: str) -> Mask:
    """Return `keep` reduced to a random sample of at most `limit`; with one seed smaller samples are parts of larger."""
    rows = np.flatnonzero(keep)
    if len(rows) <= limit:
        return keep
    generator = np.random.default_rng([seed, *split.encode()])
    mask = np.zeros_like(keep)
    mask[rows[generator.permutation(len(rows))[:limit]]] = True
    return mask


def narrowed(outer: Mask, inner: Mask) -> Mask:
    """Return the rows that both masks pick; `inner` has one entry for each row that `outer` picks."""
    mask = outer.copy()
    mask[outer] = inner
    return mask
