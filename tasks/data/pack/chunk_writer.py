"""Create a chunk file before its values are known: pyarrow writes the structure, numpy the values."""

from __future__ import annotations

from io import FileIO
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.chunks import map_columns
from trnflow.tasks.errors import DataError

if TYPE_CHECKING:
    from trnflow.tasks.data.chunks import Columns


def create_columns(path: Path, wanted: dict[str, tuple[int, ...]], labels: str = "int32") -> Columns:
    """Create a chunk file of zeros and return {column: array}, memory-mapped for writing. Arguments as of `map_columns`.

    Raises DataError when this pyarrow lays files out in an unknown way.
    """
    import numpy as np
    import pyarrow as pa

    path.parent.mkdir(parents=True, exist_ok=True)
    most = max(prod(shape) for shape in wanted.values())
    zeros = pa.py_buffer(np.zeros(most, dtype="<i4"))  # never written to, so the kernel gives it no memory
    kinds = {name: labels if name == "labels" else "int32" for name in wanted}
    arrays = [_column(zeros, shape, kinds[name]) for name, shape in wanted.items()]
    batch = pa.record_batch(arrays, names=list(wanted))
    with _Holes(path) as holes:
        options = pa.ipc.IpcWriteOptions(allow_64bit=True)  # columns of more than 2**31 tokens
        with pa.ipc.new_stream(pa.PythonFile(holes, "w"), batch.schema, options=options) as stream:
            stream.write_batch(batch)
    columns = map_columns(path, wanted, labels, "r+")
    if holes.at != [getattr(column, "offset", None) for column in columns.values()]:
        raise DataError(f"pyarrow {pa.__version__} lays columns out in another way", "install the locked versions")
    return columns


def _column(zeros: Any, shape: tuple[int, ...], kind: str) -> Any:
    import pyarrow as pa

    size = prod(shape)
    flat = pa.Array.from_buffers(pa.from_numpy_dtype(kind), size, [None, zeros.slice(0, 4 * size)], null_count=0)
    return flat if len(shape) == 1 else pa.FixedSizeListArray.from_arrays(flat, shape[1])


class _Holes(FileIO):
    """A file for pyarrow that skips the columns' buffers (sparse). at: the byte where each column begins."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "wb")
        self.at: list[int] = []

    def write(self, data: Any) -> int:
        import pyarrow as pa

        if not isinstance(data, pa.Buffer):
            return super().write(data)
        # skipped, so the file is sparse: it takes no disk until values are written
        self.at.append(self.tell())
        self.seek(data.size, 1)
        return int(data.size)
