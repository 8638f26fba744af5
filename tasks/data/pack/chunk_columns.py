"""Compute the columns of a range of chunks from their layout, and save layouts for worker processes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.pack.packers import ChunkLayout, Pieces
from trnflow.tasks.system.arrays import load_array

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

IGNORED = -100
"""The label of a token that is not supervised."""

_ARRAYS = ("row", "start", "size", "chunk", "offset")

# numpy reads a header by `ast`, which in Python 3.11 now and then fails in two threads at once
_HEADERS = threading.Lock()


def save_layout(layout: ChunkLayout, folder: Path) -> None:
    """Write a layout to a new folder, one .npy file an array, 40 bytes a piece."""
    import numpy as np

    folder.mkdir(parents=True)
    for name, values in zip(_ARRAYS, (*layout.pieces, layout.chunk, layout.offset), strict=True):
        np.save(folder / f"{name}.npy", values)


def load_layout(folder: Path) -> ChunkLayout:
    """Read what `save_layout` wrote; arrays are memory-mapped."""

    with _HEADERS:
        row, start, size, chunk, offset = (load_array(folder / f"{name}.npy", mapped=True) for name in _ARRAYS)
    return ChunkLayout(Pieces(row, start, size), chunk, offset, int(chunk[-1]) + 1)


def part_of(layout: ChunkLayout, first: int, last: int) -> ChunkLayout:
    """Return the layout of chunks `first` to before `last`, numbered from 0 again."""
    import numpy as np

    here = slice(*np.searchsorted(layout.chunk, (first, last)))
    return ChunkLayout(layout.pieces.where(here), layout.chunk[here] - first, layout.offset[here], last - first)


def fill(
    layout: ChunkLayout,
    length: int,
    ids: Array,
    mask: Array | None,
    pad_id: int,
    labels: Array | None = None,
    types: Array | None = None,
    *,
    apart: bool = False,
    pairs: bool = False,
) -> dict[str, Array]:
    """Compute a layout's columns, each int32 [chunks, length]; labels only with a mask (uint8 [tokens]) of tokens to learn,
    or the labels of tokens (int32 [tokens]).

    types: uint8 [tokens], the number of the text within its row: their segment ids are the types plus one.
    apart: Texts have positions from 0 each. pairs: The same, and several rows of two texts are in a chunk.
    """
    import numpy as np

    size, chunk = layout.pieces.size, layout.chunk
    position = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    at = np.repeat(chunk * length + layout.offset, size) + position
    source = np.repeat(layout.pieces.start, size) + position
    opens = np.searchsorted(chunk, chunk)  # for each piece, the index of the first piece of its chunk
    segment = np.repeat((np.arange(len(chunk)) - opens) * (2 if pairs else 1) + 1, size)
    if types is not None:
        segment += types[source]
        if apart or pairs:
            position = _from_each_text(position, types[source])
    values = {"input_ids": (ids[source], pad_id), "segment_ids": (segment, 0), "position_ids": (position, 0)}
    if mask is not None:
        # a segment's first token is predicted by nothing
        supervised = (mask[source] == 1) & (position > 0)
        values["labels"] = (np.where(supervised, values["input_ids"][0], IGNORED), IGNORED)
    elif labels is not None:
        values["labels"] = (labels[source], IGNORED)
    block = {}
    for name, (filled, padding) in values.items():
        flat = np.full(layout.chunks * length, padding, dtype=np.int32)
        flat[at] = filled
        block[name] = flat.reshape(layout.chunks, length)
    return block


def _from_each_text(position: Array, text: Array) -> Array:
    """Return positions counted anew in each text. Both are int [tokens]."""
    import numpy as np

    index = np.arange(len(text))
    begins = (position == 0) | (np.diff(text.astype(np.int64), prepend=0) != 0)
    return index - np.maximum.accumulate(np.where(begins, index, 0))
