"""Chunks on disk: `<split>/<length>.arrow`, an Arrow IPC stream of one record batch, which `datasets.Dataset.from_file` opens.

No column has nulls, so their bytes stand side by side at the file's end, and numpy maps them there. Nothing is copied,
and pyarrow, with which `pack_chunks` writes the rest of the file, is neither imported here nor part of a training's key.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tasks.artifact import Input

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Columns = dict[str, NDArray[np.int32]]

COLUMNS = ("input_ids", "labels", "segment_ids", "position_ids")
_END = 8
"""Bytes that end a stream; each column's bytes are padded to as many."""


def chunk_file(artifact: Path, split: str, length: int) -> Path:
    """Where the chunks of one split and length lie; there is no file where there are no chunks."""
    return artifact / split / f"{length}.arrow"


def shapes(task: str, chunks: int, length: int) -> dict[str, tuple[int, ...]]:
    """Of each column, in the file's order: [chunks, length], but a classified chunk has one label."""
    labels = (chunks,) if task == "classification" else (chunks, length)
    return {name: labels if name == "labels" else (chunks, length) for name in COLUMNS}


def open_chunks(packed: Input, split: str, length: int) -> Columns:
    """The columns of a packed artifact's chunks of one split and length, memory-mapped, read-only."""
    chunks = packed.meta["rows"][split][str(length)]
    return map_columns(chunk_file(packed.path, split, length), shapes(packed.meta["task"], chunks, length))


def map_columns(path: Path, wanted: dict[str, tuple[int, ...]], mode: Literal["r", "r+"] = "r") -> Columns:
    """The columns of a file whose columns have the shapes `wanted`, int32, memory-mapped."""
    import numpy as np

    sizes = {name: -(-4 * prod(shape) // _END) * _END for name, shape in wanted.items()}
    at = path.stat().st_size - _END - sum(sizes.values())
    found: Columns = {}
    for name, shape in wanted.items():
        found[name] = np.memmap(path, "<i4", mode, at, shape)
        at += sizes[name]
    return found
