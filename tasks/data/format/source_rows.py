"""Record which row of the data each example of `format_prompts` was made from.

Most often every row gives one example, in order, and no file is written. If a row was dropped, or became several
examples (one for each turn of a conversation, for instance), the file `<split>.source_row.npy` in the artifact's folder
has the row of each example.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]


def write_source_rows(texts: Path, split: str, found: list[Ints], rows: int) -> None:
    """Write the row of the data from which each training example of a split was made to `<split>.source_row.npy`. Write
    nothing if every row gave one example, in order.

    texts: the folder of the artifact (the output of `format_prompts`); found: the row of each example, counted from 0,
    as one array or several that follow each other; rows: the number of rows of the split."""
    import numpy as np

    ends = np.cumsum([len(piece) for piece in found])
    spans = (np.arange(end - len(piece), end) for piece, end in zip(found, ends, strict=True))
    if sum(map(len, found)) != rows or not all(map(np.array_equal, found, spans)):
        np.save(_file(texts, split), np.concatenate(found))


def read_source_rows(texts: Path, split: str, examples: int) -> Ints:
    """Return, for each training example of a split, the number of the row of data from which the example was made,
    int32 [examples], counted from 0. If there is no file `<split>.source_row.npy`, every row gave one example, and the
    result is 0, 1, 2, ...

    texts: the folder of an artifact of `format_prompts`; examples: the number of the split's examples."""
    import numpy as np

    file = _file(texts, split)
    return np.load(file) if file.exists() else np.arange(examples, dtype=np.int32)


def _file(texts: Path, split: str) -> Path:
    return texts / f"{split}.source_row.npy"
