"""Read the chunks of `pack_chunks`: `<split>/<length>.arrow`, Arrow IPC streams that `datasets.Dataset.from_file`
opens, too.

A file is one record batch without nulls, so its last bytes are the columns' values, which numpy memory-maps. pyarrow is
not imported: its version is no part of training's key.
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
"""Bytes of the mark at an Arrow stream's end, and alignment of the columns."""


def chunk_file(artifact: Path, split: str, length: int) -> Path:
    """Return the path of the chunks of one split and length; there is none without such chunks."""
    return artifact / split / f"{length}.arrow"


def segments_file(artifact: Path, split: str, length: int) -> Path:
    """Return the path of the segments' source rows of one split and length."""
    return artifact / split / f"{length}.segments.npy"


def open_segments(packed: Input, split: str, length: int) -> NDArray[np.int64]:
    """Return int64 [segments, 2], memory-mapped, in the order of chunks and segment ids: the segment's row in
    `<split>.parquet` of format_prompts, and that row's tokens before any cut."""
    import numpy as np

    found: NDArray[np.int64] = np.load(segments_file(packed.path, split, length), mmap_mode="r")
    return found


def shapes(task: str, chunks: int, length: int) -> dict[str, tuple[int, ...]]:
    """Return {column: shape} in a chunk file's order: (chunks, length), for the labels of classification (chunks,)."""
    labels = (chunks,) if task == "classification" else (chunks, length)
    return {name: labels if name == "labels" else (chunks, length) for name in COLUMNS}


def open_chunks(packed: Input, split: str, length: int) -> Columns:
    """Return {column: int32 array} of one split and length, memory-mapped, read-only, with the shapes of `shapes`."""
    chunks = packed.meta["rows"][split][str(length)]
    return map_columns(chunk_file(packed.path, split, length), shapes(packed.meta["task"], chunks, length))


def map_columns(path: Path, wanted: dict[str, tuple[int, ...]], mode: Literal["r", "r+"] = "r") -> Columns:
    """Memory-map a chunk file's columns as int32. wanted: {column: shape} in the file's order; mode: "r+" to write."""
    import numpy as np

    sizes = {name: -(-4 * prod(shape) // _END) * _END for name, shape in wanted.items()}
    at = path.stat().st_size - _END - sum(sizes.values())
    found: Columns = {}
    for name, shape in wanted.items():
        found[name] = np.memmap(path, "<i4", mode, at, shape)
        at += sizes[name]
    return found
