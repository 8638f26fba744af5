"""Where rows go: layouts of ragged rows in chunks of fixed length. Pure functions of row lengths, no tokens touched.

bfd: best fit decreasing over the whole set: the fullest chunk that still has room is the lowest set bit of an integer whose
bit r says that a chunk has room r. Rows of one size are placed together, so that Python's work grows with chunk_length.
concat: rows one after another, cut at every chunk's end. bucket: the few lengths that pad least, by dynamic programming.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Counts = np.ndarray[Any, np.dtype[np.int64]]

ALIGN = 8
"""Bucket lengths are multiples of this: accelerators pad to it anyway."""


class Pieces(NamedTuple):
    """Runs of tokens that stay together, int64 [pieces]. row: which row; start: first token in the split; size: tokens."""

    row: Counts
    start: Counts
    size: Counts

    def where(self, mask: Any) -> Pieces:
        """The pieces that `mask` (or an order) picks."""
        return Pieces(self.row[mask], self.start[mask], self.size[mask])


class Layout(NamedTuple):
    """Pieces and where each goes, int64 [pieces], sorted by (chunk, offset). chunks: how many there are."""

    pieces: Pieces
    chunk: Counts
    offset: Counts
    chunks: int

    def only(self, wanted: Any) -> Layout:
        """Those chunks that the mask `wanted` picks, numbered anew."""
        import numpy as np

        kept = wanted[self.chunk]
        number = (np.cumsum(wanted) - 1)[self.chunk[kept]]
        return Layout(self.pieces.where(kept), number, self.offset[kept], int(wanted.sum()))


def whole_rows(offsets: Counts) -> Pieces:
    """offsets: int64 [rows + 1] -> one piece a row."""
    import numpy as np

    return Pieces(np.arange(len(offsets) - 1), np.asarray(offsets[:-1]), np.diff(offsets))


def cut_rows(pieces: Pieces, most: int) -> Pieces:
    """Pieces of at most `most` tokens; those that fit stay whole, order kept."""
    import numpy as np

    parts = np.maximum(-(-pieces.size // most), 1)
    row, first, size = (np.repeat(values, parts) for values in pieces)
    at = (np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)) * most
    return Pieces(row, first + at, np.minimum(size - at, most))


def trained_on(pieces: Pieces, mask: Any) -> Any:
    """bool [pieces]: whether a piece has a token that is trained on after its first, which nothing before it predicts.

    pieces: ascending and apart; mask: uint8 [tokens]."""
    import numpy as np

    found = np.zeros(len(pieces.size), dtype=bool)
    longer = np.flatnonzero(pieces.size > 1)
    if len(longer):
        first, size = pieces.start[longer], pieces.size[longer]
        edges = np.stack([first + 1, first + size], axis=1).ravel()
        inside = edges[:-1] if edges[-1] == len(mask) else edges
        found[longer] = np.maximum.reduceat(mask, inside)[::2] > 0
    return found


def one_each(pieces: Pieces) -> Layout:
    """A chunk for every piece, in order: pad and bucket."""
    import numpy as np

    return Layout(pieces, np.arange(len(pieces.size)), np.zeros(len(pieces.size), dtype=np.int64), len(pieces.size))


def concatenated(pieces: Pieces, length: int) -> Layout:
    """All tokens in order, cut at multiples of `length`; the last chunk is padded, so none is lost. At least one token."""
    import numpy as np

    ends = np.cumsum(pieces.size)
    begins = ends - pieces.size
    cuts = np.union1d(begins[pieces.size > 0], np.arange(0, ends[-1], length))
    index = np.searchsorted(begins, cuts, side="right") - 1
    # of rows that begin at one place all but the last are empty; searchsorted found the last
    stops = np.append(cuts[1:], ends[-1])
    parts = Pieces(pieces.row[index], pieces.start[index] + cuts - begins[index], stops - cuts)
    return Layout(parts, cuts // length, cuts % length, int(-(-ends[-1] // length)))


def best_fit(pieces: Pieces, length: int) -> Layout:
    """Best fit decreasing; no piece is empty or longer than `length`. Chunks are numbered by their earliest row, rows inside a
    chunk keep their order, so the set's order shows through."""
    import numpy as np

    order = np.argsort(-pieces.size, kind="stable")
    bins = np.empty(len(order), dtype=np.int64)
    bins[order] = _fill(pieces.size[order], length)
    count = int(bins.max()) + 1
    earliest = np.empty(count, dtype=np.int64)
    earliest[bins[::-1]] = np.arange(len(bins))[::-1]  # the last that is written stays
    number = np.empty(count, dtype=np.int64)
    number[np.argsort(earliest)] = np.arange(count)
    return _ordered(pieces, number[bins], count)


def _fill(sizes: Counts, length: int) -> Counts:
    """The bin of each size; sizes are at least 1 and descend. open_at[r]: the bins with room r.

    Once a size has gone into the fullest bin that has room, that bin is the fullest still: it takes as many as it holds."""
    import numpy as np

    open_at: list[list[int]] = [[] for _ in range(length + 1)]
    rooms, used, found = 0, 0, []
    values, counts = np.unique(sizes, return_counts=True)
    for size, left in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        while left:
            fitting = rooms >> size
            room = size + (fitting & -fitting).bit_length() - 1 if fitting else length
            each = min(room // size, left)
            if fitting:
                bins = open_at[room][-(left // each) :]
                del open_at[room][-(left // each) :]
                rooms ^= 0 if open_at[room] else 1 << room
            else:
                bins = list(range(used, used + left // each))
                used += len(bins)
            open_at[room - each * size] += bins
            rooms |= 1 << (room - each * size)
            left -= each * len(bins)
            found.append(np.repeat(np.array(bins, dtype=np.int64), each))
    return np.concatenate(found)


def _ordered(pieces: Pieces, chunk: Counts, count: int) -> Layout:
    """Side by side in their chunks, in the order of the pieces."""
    import numpy as np

    order = np.argsort(chunk, kind="stable")
    pieces, chunk = pieces.where(order), chunk[order]
    before = np.cumsum(pieces.size) - pieces.size
    first = np.searchsorted(chunk, np.arange(count))
    return Layout(pieces, chunk, before - before[first][chunk], count)


def bucket_lengths(sizes: Counts, most: int, buckets: int) -> list[int]:
    """At most `buckets` ascending lengths, multiples of 8 (the last at most `most`), with the fewest padded tokens.

    O(buckets x (most / 8)^2), whatever the number of rows. sizes: of at least one row, none above `most`."""
    import numpy as np

    steps = -(-np.maximum(sizes, 1) // ALIGN)
    rows = np.bincount(steps)
    candidates = np.flatnonzero(rows)
    below = np.cumsum(rows)[candidates]
    lengths = np.minimum(candidates * ALIGN, most)
    chosen = _fewest_padded(below.tolist(), lengths.tolist(), buckets)
    return [int(lengths[index]) for index in chosen]


def _fewest_padded(below: Sequence[int], lengths: Sequence[int], buckets: int) -> list[int]:
    """Indices of the chosen lengths, the last included. below[i]: rows that lengths[i] holds; cost: rows x length."""
    import numpy as np

    count, total = np.array(below, dtype=np.float64), np.array(lengths, dtype=np.float64)
    cost, chains = count * total, [[index] for index in range(len(lengths))]
    best, best_chain = cost[-1], chains[-1]
    for _ in range(min(buckets, len(lengths)) - 1):
        steps = cost[None, :] + (count[:, None] - count[None, :]) * total[:, None]
        steps[np.triu_indices(len(lengths))] = np.inf
        before = np.argmin(steps, axis=1)
        cost = steps[np.arange(len(lengths)), before]
        chains = [[*chains[prior], index] for index, prior in enumerate(before.tolist())]
        if cost[-1] < best:
            best, best_chain = cost[-1], chains[-1]
    return best_chain
