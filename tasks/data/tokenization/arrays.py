"""Write `.npy` files whose length is not known beforehand, without holding the array in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class GrowingArray:
    """A `.npy` file that values are appended to; valid when the context ends.

    dtype: such as "<i4"; width: values of a row, in a two-dimensional file. size: numbers or rows so far.
    """

    def __init__(self, path: Path, dtype: str, width: int | None = None) -> None:
        import numpy as np

        path.parent.mkdir(parents=True, exist_ok=True)
        self._dtype, self._width = np.dtype(dtype), width
        self._file = path.open("wb")
        self._header()
        self._start = self._file.tell()
        self.size = 0

    def append(self, values: np.ndarray[Any, Any]) -> None:
        """Append values. Raises TypeError for another kind than the file's, such as floats among integers."""
        self._file.write(values.astype(self._dtype, casting="same_kind", copy=False).tobytes())
        self.size += len(values)

    def __enter__(self) -> GrowingArray:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.seek(0)
        self._header(self.size)
        assert self._file.tell() == self._start, "numpy's header kept its length"
        self._file.close()

    def _header(self, size: int = 0) -> None:
        from numpy.lib import format as npy

        shape = (size,) if self._width is None else (size, self._width)
        described = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._file, described)
