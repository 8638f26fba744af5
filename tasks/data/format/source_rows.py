"""Record which row each example of `format_prompts` was made from.

Most often the examples are the rows one for one, and nothing is written. Rows that were dropped, or that became several
examples (of a conversation one for each turn, for instance), make a file `<split>.source_row.npy`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]


def write_source_rows(texts: Path, split: str, found: list[Ints], rows: int) -> None:
    """Write the rows of a split's examples, unless the examples are the rows one for one.

    texts: the folder of the artifact; found: the row of each example, counted from 0, in pieces; rows: the split's number of
    rows."""
    import numpy as np

    ends = np.cumsum([len(piece) for piece in found])
    spans = (np.arange(end - len(piece), end) for piece, end in zip(found, ends, strict=True))
    if sum(map(len, found)) != rows or not all(map(np.array_equal, found, spans)):
        np.save(_file(texts, split), np.concatenate(found))


def read_source_rows(texts: Path, split: str, examples: int) -> Ints:
    """Return the row of each example, int32 [examples], counted from 0. texts: the folder of an artifact of
    `format_prompts`; examples: the number of the split's examples."""
    import numpy as np

    file = _file(texts, split)
    return np.load(file) if file.exists() else np.arange(examples, dtype=np.int32)


def _file(texts: Path, split: str) -> Path:
    return texts / f"{split}.source_row.npy"
