"""Read the chunks of `pack_chunks`: Arrow IPC streams that `datasets.Dataset.from_file` opens, too."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trnflow.tasks.artifact import Input
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.system.arrays import load_array

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trnflow.tasks.metadata import PackedMeta

    Columns = dict[str, NDArray[Any]]
    from trnflow.tasks.system.arrays import Ints

SEGMENTS = ("source_row", "source_tokens")
"""The columns of a file of segments."""
COLUMNS = ("input_ids", "labels", "segment_ids", "position_ids")
_END = 8
"""Bytes of the mark at an Arrow stream's end, and alignment of the columns."""


def chunk_file(artifact: Path, split: str, length: int) -> Path:
    """Return the path of the chunks of one split and length; there is none without such chunks."""
    return artifact / split / f"{length}.arrow"


def segments_file(artifact: Path, split: str, length: int) -> Path:
    """Return the path of the segments' source rows of one split and length."""
    return artifact / split / f"{length}.segments.npy"


def marks_file(artifact: Path, split: str, length: int) -> Path:
    return artifact / split / f"{length}.marks.npy"


def open_marks(packed: Input[PackedMeta], split: str, length: int) -> NDArray[np.int8]:
    """Return int8 [chunks, pairs], memory-mapped: 1 for a desirable answer, -1 for another, 0 for none."""
    marks: NDArray[np.int8] = load_array(marks_file(packed.path, split, length), mapped=True)
    return marks


def open_segments(packed: Input[PackedMeta], split: str, length: int) -> Ints:
    """Return int64 [segments, 2], memory-mapped: each segment's row in `<split>.parquet`, and that row's tokens, uncut."""

    segments: Ints = load_array(segments_file(packed.path, split, length), mapped=True)
    return segments


def open_reference(reference: Input, split: str, length: int) -> NDArray[np.float32]:
    """Return float32 [chunks, documents], memory-mapped: the reference's log-probability of each document's answer."""

    logps: NDArray[np.float32] = load_array(reference.path / split / f"{length}.npy", mapped=True)
    return logps


def shapes(task: str, chunks: int, length: int, outputs: int = 1) -> dict[str, tuple[int, ...]]:
    """Return {column: shape} in a chunk file's order. outputs: of the model's head."""
    labels = kind_of(task).target_shape(chunks, length, outputs)
    return {name: labels if name == "labels" else (chunks, length) for name in COLUMNS}


def open_chunks(packed: Input[PackedMeta], split: str, length: int) -> Columns:
    """Return {column: array} of one split and length, memory-mapped, read-only."""
    chunks, task = packed.meta["rows"][split][str(length)], packed.meta["task"]
    wanted = shapes(task, chunks, length, len(packed.meta["labels"] or ()))
    return map_columns(chunk_file(packed.path, split, length), wanted, kind_of(task).target_type)


def map_columns(
    path: Path, wanted: dict[str, tuple[int, ...]], labels: str = "int32", mode: Literal["r", "r+"] = "r"
) -> Columns:
    """Memory-map a chunk file's columns as int32. wanted: {column: shape}; labels: type of the column `labels`."""
    import numpy as np

    # one record batch without nulls: the file's last bytes are the values. pyarrow's version is in no key of training
    sizes = {name: -(-4 * prod(shape) // _END) * _END for name, shape in wanted.items()}
    at = path.stat().st_size - _END - sum(sizes.values())
    columns: Columns = {}
    for name, shape in wanted.items():
        columns[name] = np.memmap(path, labels if name == "labels" else "int32", mode, at, shape)
        at += sizes[name]
    return columns
