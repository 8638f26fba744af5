"""Record which row each example was made from, in `<split>.source_row.npy`, unless every row gives one, in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.system.arrays import load_array

if TYPE_CHECKING:
    from trnflow.tasks.system.arrays import Int32s


def write_source_rows(texts: Path, split: str, sources: list[Int32s], rows: int) -> None:
    """Write each example's row, int32 from 0, in arrays one after another."""
    import numpy as np

    ends = np.cumsum([len(piece) for piece in sources])
    spans = (np.arange(end - len(piece), end) for piece, end in zip(sources, ends, strict=True))
    # where every row gave one example, the file would say nothing
    if sum(map(len, sources)) != rows or not all(map(np.array_equal, sources, spans)):
        np.save(_file(texts, split), np.concatenate(sources))


def read_source_rows(texts: Path, split: str, examples: int) -> Int32s:
    """Return each example's row, int32 [examples], from 0; without file 0, 1, 2, ..."""
    import numpy as np

    file = _file(texts, split)
    return load_array(file) if file.exists() else np.arange(examples, dtype=np.int32)


def _file(texts: Path, split: str) -> Path:
    return texts / f"{split}.source_row.npy"
