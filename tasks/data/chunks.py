"""Read the files of chunks that `pack_chunks` writes: `<split>/<length>.arrow`, Arrow IPC streams that
`datasets.Dataset.from_file` opens, too.

A *chunk* is a sequence of fixed length that a model reads. It holds one or more *segments*, each a row of tokens or a
piece of one, and then padding. A file is one record batch without nulls, so its last bytes are the columns' values, one
column after another, and numpy can memory-map each column. This module does not import pyarrow, so that pyarrow's
version is no part of a training's cache key.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trnflow.tasks.artifact import Input

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Columns = dict[str, NDArray[np.int32]]

SEGMENTS = ("source_row", "source_tokens")
"""The columns of a file of segments, which `open_segments` explains."""
COLUMNS = ("input_ids", "labels", "segment_ids", "position_ids")
_END = 8
"""Size in bytes of the mark at the end of an Arrow stream, and alignment of the columns."""


def chunk_file(artifact: Path, split: str, length: int) -> Path:
    """Return the path of the file with the chunks (padded token sequences of fixed length) of one split and length (in
    tokens), in the artifact (output folder) of `pack_chunks`. A split without chunks of this length has no such
    file."""
    return artifact / split / f"{length}.arrow"


def segments_file(artifact: Path, split: str, length: int) -> Path:
    """Return the path of the file that lists, for each segment in the chunks of one split and length (in tokens), the
    row from which the segment was cut. A segment is a text or a piece of one that stands in a chunk, perhaps beside
    others; artifact: the output folder of `pack_chunks`."""
    return artifact / split / f"{length}.segments.npy"


def open_segments(packed: Input, split: str, length: int) -> NDArray[np.int64]:
    """Return, for each segment (a text or a piece of one that stands in a chunk) of one split and length (in tokens),
    the row that it was cut from: int64 [segments, 2], memory-mapped, in the order of chunks and segment ids. packed:
    the artifact of the stage `pack_chunks`.

    The two columns: the row's number, from 0, in the file `<split>.parquet` that `format_prompts` wrote, and the number
    of the row's tokens before anything was cut."""
    import numpy as np

    found: NDArray[np.int64] = np.load(segments_file(packed.path, split, length), mmap_mode="r")
    return found


def shapes(task: str, chunks: int, length: int) -> dict[str, tuple[int, ...]]:
    """Return {column: shape} for a file of chunks (padded token sequences of one length), in the order of the columns
    in the file.

    Args:
        task: "classification" or "causal_lm".
        chunks: the number of chunks.
        length: the number of tokens in each chunk.

    A shape is (chunks, length), except (chunks,) for the labels of classification.
    """
    labels = (chunks,) if task == "classification" else (chunks, length)
    return {name: labels if name == "labels" else (chunks, length) for name in COLUMNS}


def open_chunks(packed: Input, split: str, length: int) -> Columns:
    """Open the chunks (padded token sequences) of one split and length (in tokens) for reading. packed: the artifact of
    the stage `pack_chunks`.

    Returns {column: int32 array}, such as `input_ids` and `labels`, memory-mapped and read-only, with the shapes that
    `shapes` gives."""
    chunks = packed.meta["rows"][split][str(length)]
    return map_columns(chunk_file(packed.path, split, length), shapes(packed.meta["task"], chunks, length))


def map_columns(path: Path, wanted: dict[str, tuple[int, ...]], mode: Literal["r", "r+"] = "r") -> Columns:
    """Memory-map the columns of a file of chunks (padded token sequences of one length) as int32 arrays, and return
    {column: array}.

    wanted: {column: shape} in the file's order; mode: "r" to read, "r+" to write values into the file."""
    import numpy as np

    sizes = {name: -(-4 * prod(shape) // _END) * _END for name, shape in wanted.items()}
    at = path.stat().st_size - _END - sum(sizes.values())
    found: Columns = {}
    for name, shape in wanted.items():
        found[name] = np.memmap(path, "<i4", mode, at, shape)
        at += sizes[name]
    return found
