"""Compute the columns of a range of chunks from their layout, and save layouts as files, from which worker processes
read them. A layout says in which chunk, and at which position, each piece of a token row is placed (`packers.Layout`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.pack.packers import Layout, Pieces

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

IGNORED = -100
"""The label of a token that is not supervised."""

_ARRAYS = ("row", "start", "size", "chunk", "offset")


def save_layout(layout: Layout, folder: Path) -> None:
    """Write a layout to the new folder `folder`, one .npy file for each array, 40 bytes for each piece. A layout says
    in which chunk (a token sequence of fixed length), and at which position, each piece of a token row is placed."""
    import numpy as np

    folder.mkdir(parents=True)
    for name, values in zip(_ARRAYS, (*layout.pieces, layout.chunk, layout.offset), strict=True):
        np.save(folder / f"{name}.npy", values)


def load_layout(folder: Path) -> Layout:
    """Read a layout that `save_layout` wrote to `folder`: in which chunk (a token sequence of fixed length), and at
    which position, each piece of a token row is placed. The arrays are memory-mapped."""
    import numpy as np

    row, start, size, chunk, offset = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS)
    return Layout(Pieces(row, start, size), chunk, offset, int(chunk[-1]) + 1)


def part_of(layout: Layout, first: int, last: int) -> Layout:
    """Return the part of a layout for the chunks (token sequences of fixed length) from number `first` up to, but not
    including, `last`. In the result these chunks are numbered from 0 again. layout: in which chunk, and at which
    position, each piece of a token row is placed."""
    import numpy as np

    here = slice(*np.searchsorted(layout.chunk, (first, last)))
    return Layout(layout.pieces.where(here), layout.chunk[here] - first, layout.offset[here], last - first)


def fill(layout: Layout, length: int, ids: Array, mask: Array | None, pad_id: int) -> dict[str, Array]:
    """Compute the columns of a layout's chunks (padded token sequences of one length), each int32 [chunks, length]:
    input_ids, segment_ids, position_ids and, if there is a mask, labels. A layout says in which chunk, and at which
    position, each piece of a token row is placed.

    input_ids are the token ids, with `pad_id` for padding; segment_ids number the pieces of a chunk from 1, with 0 for
    padding; position_ids count from 0 in each piece, with 0 for padding; labels are the token ids, with -100 for
    padding, for tokens that are not trained on, and for each piece's first token.

    Args:
        layout: the chunks to fill, numbered from 0.
        length: tokens of a chunk.
        ids: int32 [tokens], all token ids of the split.
        mask: uint8 [tokens], 1 where trained on, or None (classification).
        pad_id: the token id in the positions that no piece fills.
    """
    import numpy as np

    size, chunk = layout.pieces.size, layout.chunk
    position = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    at = np.repeat(chunk * length + layout.offset, size) + position
    source = np.repeat(layout.pieces.start, size) + position
    opens = np.searchsorted(chunk, chunk)  # for each piece, the index of the first piece of its chunk
    values = {
        "input_ids": (ids[source], pad_id),
        "segment_ids": (np.repeat(np.arange(len(chunk)) - opens + 1, size), 0),
        "position_ids": (position, 0),
    }
    if mask is not None:
        supervised = (mask[source] == 1) & (position > 0)
        values["labels"] = (np.where(supervised, values["input_ids"][0], IGNORED), IGNORED)
    block = {}
    for name, (filled, padding) in values.items():
        flat = np.full(layout.chunks * length, padding, dtype=np.int32)
        flat[at] = filled
        block[name] = flat.reshape(layout.chunks, length)
    return block
