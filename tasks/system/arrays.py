"""Read numpy's array files in any thread."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Int32s = NDArray[np.int32]

# numpy reads a header by `ast`, which in Python 3.11 now and then fails in two threads at once
_HEADERS = threading.Lock()


def load_array(file: Path, *, mapped: bool = False) -> NDArray[Any]:
    """Read a .npy file without pickles, or map it into memory, read-only."""
    import numpy as np

    with _HEADERS:
        array: NDArray[Any] = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    return array
