"""Compute where token rows go in chunks, the sequences of fixed length that a model reads. Pure functions of the rows'
lengths, which never read the tokens (only `trained_on` reads the loss mask). The setting `pack.strategy` says how:

bfd: best fit decreasing over the whole split: the longest row first, each in the fullest chunk that has room. The index
of open chunks is an integer: bit r is set if some chunk has room for exactly r tokens. The lowest set bit from a row's
length on therefore names the fullest chunk with enough room. Rows of equal length are placed together, so Python's work
grows with the chunks' length, not with the number of rows.

concat: rows one after another, cut at each chunk's end.

pad: each row in a chunk of its own, padded to one length.

bucket: each row in a chunk of its own, padded to one of a few lengths. The lengths that need the least padding are
found by dynamic programming.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Counts = np.ndarray[Any, np.dtype[np.int64]]

ALIGN = 8
"""Bucket lengths are multiples of this number, because accelerators pad rows to such multiples anyway."""


class Pieces(NamedTuple):
    """Pieces of token rows, each a whole row or a section of one, that are placed without another cut in chunks (token
    sequences of fixed length). All arrays are int64 [pieces].

    Attributes:
        row: the row's number in the split.
        start: the index of the piece's first token among all tokens of the split.
        size: the piece's number of tokens.
    """

    row: Counts
    start: Counts
    size: Counts

    def where(self, mask: Any) -> Pieces:
        """Return those pieces (token rows or sections of rows) that `mask` selects. mask: a bool mask, a slice or an
        array of indices, as in numpy."""
        return Pieces(self.row[mask], self.start[mask], self.size[mask])


class Layout(NamedTuple):
    """The place of each piece of a token row: its chunk (a token sequence of fixed length) and its position in the
    chunk.

    Attributes:
        pieces: the pieces, sorted by the number of their chunk, then by their position in the chunk.
        chunk: int64 [pieces], the number of the piece's chunk.
        offset: int64 [pieces], the position in the chunk of the piece's first token.
        chunks: the number of chunks.
    """

    pieces: Pieces
    chunk: Counts
    offset: Counts
    chunks: int

    def only(self, wanted: Any) -> Layout:
        """Return a layout with only the chunks (token sequences of fixed length) that `wanted` picks, numbered from 0
        again in the same order. wanted: bool [chunks], True for the chunks to keep."""
        import numpy as np

        kept = wanted[self.chunk]
        number = (np.cumsum(wanted) - 1)[self.chunk[kept]]
        return Layout(self.pieces.where(kept), number, self.offset[kept], int(wanted.sum()))


def whole_rows(offsets: Counts) -> Pieces:
    """Make one piece of each token row, without a cut. offsets: int64 [rows + 1], the index of each row's first token
    among the split's tokens."""
    import numpy as np

    return Pieces(np.arange(len(offsets) - 1), np.asarray(offsets[:-1]), np.diff(offsets))


def cut_rows(pieces: Pieces, most: int) -> Pieces:
    """Cut pieces (token rows or sections of rows) that are longer than `most` tokens into several, and return all
    pieces. The order of the tokens stays the same."""
    import numpy as np

    parts = np.maximum(-(-pieces.size // most), 1)
    row, first, size = (np.repeat(values, parts) for values in pieces)
    at = (np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)) * most
    return Pieces(row, first + at, np.minimum(size - at, most))


def trained_on(pieces: Pieces, mask: Any) -> Any:
    """Return bool [pieces]: whether any token after the piece's first is trained on. The first token does not count,
    because no token before it predicts it. A piece is a token row or a section of one.

    pieces: sorted by `start`, not overlapping; mask: uint8 [tokens of the split], 1 where trained on."""
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
    """Place each piece (a token row or a section of one) in a chunk of its own (a token sequence of fixed length,
    padded at its end), in the order of the pieces. Used by the strategies pad and bucket."""
    import numpy as np

    return Layout(pieces, np.arange(len(pieces.size)), np.zeros(len(pieces.size), dtype=np.int64), len(pieces.size))


def concatenated(pieces: Pieces, length: int) -> Layout:
    """Place the tokens of all pieces (token rows or sections of rows) one after another and cut them into chunks of
    `length` tokens (strategy concat). A piece that spans a cut becomes several pieces. The last chunk is padded. There
    must be at least one token."""
    import numpy as np

    ends = np.cumsum(pieces.size)
    begins = ends - pieces.size
    cuts = np.union1d(begins[pieces.size > 0], np.arange(0, ends[-1], length))
    index = np.searchsorted(begins, cuts, side="right") - 1
    # where several rows begin at one place, all but the last are empty; searchsorted finds the last
    stops = np.append(cuts[1:], ends[-1])
    parts = Pieces(pieces.row[index], pieces.start[index] + cuts - begins[index], stops - cuts)
    return Layout(parts, cuts // length, cuts % length, int(-(-ends[-1] // length)))


def best_fit(pieces: Pieces, length: int) -> Layout:
    """Place pieces (token rows or sections of rows) in chunks by best fit decreasing (the strategy bfd): the longest
    first, each in the fullest chunk that has room for it.

    length: tokens of a chunk; no piece may be empty or longer. Chunks are numbered by their earliest row, and rows keep
    their order within a chunk."""
    import numpy as np

    order = np.argsort(-pieces.size, kind="stable")
    bins = np.empty(len(order), dtype=np.int64)
    bins[order] = _fill(pieces.size[order], length)
    count = int(bins.max()) + 1
    earliest = np.empty(count, dtype=np.int64)
    earliest[bins[::-1]] = np.arange(len(bins))[::-1]  # of several values for one index the last one stays
    number = np.empty(count, dtype=np.int64)
    number[np.argsort(earliest)] = np.arange(count)
    return _ordered(pieces, number[bins], count)


def _fill(sizes: Counts, length: int) -> Counts:
    """Return the number of the bin that each size is placed in, int64 [sizes]. sizes: descending, each at least 1;
    length: the capacity of a bin.

    The fullest bin with room for a size is still the fullest one after an item of that size was placed in it, so as
    many items of that size as fit are placed in it at once."""
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
    """Return the layout that puts pieces one after another in their chunks, in the order of the pieces. chunk: int64
    [pieces], the chunk of each piece; count: the number of chunks."""
    import numpy as np

    order = np.argsort(chunk, kind="stable")
    pieces, chunk = pieces.where(order), chunk[order]
    before = np.cumsum(pieces.size) - pieces.size
    first = np.searchsorted(chunk, np.arange(count))
    return Layout(pieces, chunk, before - before[first][chunk], count)


def bucket_lengths(sizes: Counts, most: int, buckets: int) -> list[int]:
    """Choose the lengths in tokens of the chunks (padded rows) for the strategy bucket: at most `buckets` lengths that
    need the least padding, ascending. Each is a multiple of 8, or `most` itself. The longest row fits the last one.

    sizes: int64 [rows], tokens of each row, at least one row, none longer than `most`; most: the largest length
    allowed. Takes O(buckets x (most / 8)^2), however many rows there are."""
    import numpy as np

    steps = -(-np.maximum(sizes, 1) // ALIGN)
    rows = np.bincount(steps)
    candidates = np.flatnonzero(rows)
    below = np.cumsum(rows)[candidates]
    lengths = np.minimum(candidates * ALIGN, most)
    chosen = _fewest_padded(below.tolist(), lengths.tolist(), buckets)
    return [int(lengths[index]) for index in chosen]


def _fewest_padded(below: Sequence[int], lengths: Sequence[int], buckets: int) -> list[int]:
    """Return the indices of the chosen lengths, which always include the last one. below[i]: how many rows are at most
    lengths[i] tokens long."""
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
