"""Compute where token rows go in chunks. Pure functions of lengths, but `trained_on` reads the loss mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Counts = np.ndarray[Any, np.dtype[np.int64]]

# accelerators pad to it anyway
ALIGN = 8
"""Bucket lengths are multiples of it."""


class Pieces(NamedTuple):
    """Pieces of token rows, int64 [pieces] each: row, first token in the split, tokens."""

    row: Counts
    start: Counts
    size: Counts

    def where(self, mask: Any) -> Pieces:
        """Return the pieces that `mask` selects, as numpy does."""
        return Pieces(self.row[mask], self.start[mask], self.size[mask])


class ChunkLayout(NamedTuple):
    """The place of each piece, sorted by chunk, then position.

    chunk: int64 [pieces]; offset: int64 [pieces], in the chunk.
    """

    pieces: Pieces
    chunk: Counts
    offset: Counts
    chunks: int

    def only(self, wanted: Any) -> ChunkLayout:
        """Return the chunks that `wanted` (bool [chunks]) picks, numbered from 0 again."""
        import numpy as np

        kept = wanted[self.chunk]
        number = (np.cumsum(wanted) - 1)[self.chunk[kept]]
        return ChunkLayout(self.pieces.where(kept), number, self.offset[kept], int(wanted.sum()))


def whole_rows(offsets: Counts) -> Pieces:
    """Make one piece of each row. offsets: int64 [rows + 1]."""
    import numpy as np

    return Pieces(np.arange(len(offsets) - 1), np.asarray(offsets[:-1]), np.diff(offsets))


def cut_rows(pieces: Pieces, most: int) -> Pieces:
    """Cut pieces of more than `most` tokens; tokens keep their order."""
    import numpy as np

    parts = np.maximum(-(-pieces.size // most), 1)
    row, first, size = (np.repeat(values, parts) for values in pieces)
    at = (np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)) * most
    return Pieces(row, first + at, np.minimum(size - at, most))


def trained_on(pieces: Pieces, mask: Any) -> Any:
    """Return bool [pieces]: a token after the first is trained on. pieces: sorted by `start`; mask: uint8 [tokens]."""
    import numpy as np

    trained = np.zeros(len(pieces.size), dtype=bool)
    longer = np.flatnonzero(pieces.size > 1)
    if len(longer):
        first, size = pieces.start[longer], pieces.size[longer]
        edges = np.stack([first + 1, first + size], axis=1).ravel()
        inside = edges[:-1] if edges[-1] == len(mask) else edges
        trained[longer] = np.maximum.reduceat(mask, inside)[::2] > 0
    return trained


def one_each(pieces: Pieces) -> ChunkLayout:
    """Place each piece in a chunk of its own (pad, bucket)."""
    import numpy as np

    return ChunkLayout(
        pieces, np.arange(len(pieces.size)), np.zeros(len(pieces.size), dtype=np.int64), len(pieces.size)
    )


def concatenated(pieces: Pieces, length: int) -> ChunkLayout:
    """Place all tokens one after another, cut every `length` (concat); the last chunk is padded."""
    import numpy as np

    ends = np.cumsum(pieces.size)
    begins = ends - pieces.size
    cuts = np.union1d(begins[pieces.size > 0], np.arange(0, ends[-1], length))
    index = np.searchsorted(begins, cuts, side="right") - 1
    # where several rows begin at one place, all but the last are empty; searchsorted finds the last
    stops = np.append(cuts[1:], ends[-1])
    parts = Pieces(pieces.row[index], pieces.start[index] + cuts - begins[index], stops - cuts)
    return ChunkLayout(parts, cuts // length, cuts % length, int(-(-ends[-1] // length)))


def best_fit(pieces: Pieces, length: int) -> ChunkLayout:
    """Place pieces by best fit decreasing; none may be longer than `length`. Chunks are numbered by their earliest row."""
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
    """Return each size's bin, int64 [sizes]. sizes: descending, from 1."""
    import numpy as np

    open_at: list[list[int]] = [[] for _ in range(length + 1)]
    rooms, used, filled = 0, 0, []
    values, counts = np.unique(sizes, return_counts=True)
    for size, left in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        while left:
            # bit r is set if a chunk has room for exactly r: the lowest bit from the size on is the fullest chunk
            # with room
            fitting = rooms >> size
            room = size + (fitting & -fitting).bit_length() - 1 if fitting else length
            # as many of one size as fit at once: the chunk stays the fullest, and the work grows with its length, not
            # with rows
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
            filled.append(np.repeat(np.array(bins, dtype=np.int64), each))
    return np.concatenate(filled)


def _ordered(pieces: Pieces, chunk: Counts, count: int) -> ChunkLayout:
    """Return the layout that puts pieces one after another in their chunks (int64 [pieces])."""
    import numpy as np

    order = np.argsort(chunk, kind="stable")
    pieces, chunk = pieces.where(order), chunk[order]
    before = np.cumsum(pieces.size) - pieces.size
    first = np.searchsorted(chunk, np.arange(count))
    return ChunkLayout(pieces, chunk, before - before[first][chunk], count)


def bucket_lengths(sizes: Counts, most: int, buckets: int) -> list[int]:
    """Choose at most `buckets` lengths with the least padding, ascending, by dynamic programming."""
    import numpy as np

    steps = -(-np.maximum(sizes, 1) // ALIGN)
    rows = np.bincount(steps)
    candidates = np.flatnonzero(rows)
    below = np.cumsum(rows)[candidates]
    lengths = np.minimum(candidates * ALIGN, most)
    chosen = _fewest_padded(below.tolist(), lengths.tolist(), buckets)
    return [int(lengths[index]) for index in chosen]


def _fewest_padded(below: Sequence[int], lengths: Sequence[int], buckets: int) -> list[int]:
    """Return the indices of the chosen lengths, the last always. below[i]: rows of at most lengths[i] tokens."""
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
