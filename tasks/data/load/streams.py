"""Open a data file as bytes, text or lines. gzip, bzip2, xz and zstd are recognised by the first bytes, not by name."""

from __future__ import annotations

import contextlib
import io
import lzma
from _compression import DecompressReader
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from trnflow.tasks.data.load.row_sizes import BATCH, BATCH_BYTES
from trnflow.tasks.errors import DataError
from trnflow.tasks.sources.data_files import check_growth

Row = TypeVar("Row")
BUFFER = 1 << 20
MB = 1_000_000
WINDOW = 1 << 28
"""Most bytes that xz may keep of what it unpacked: `xz -9` keeps 64 MiB, a file's header may say 4 GiB."""
MOST_COLUMNS = 100_000
"""Columns of a file: one with more is no table, but has a row's values or an object's entries in the place of columns."""
MOST_CELLS = 1 << 22
"""Cells of a batch of more than one row."""
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz"}
max_cell_mb: ContextVar[float] = ContextVar("max_cell_mb", default=20)
"""The setting `data.max_cell_mb`, for all readers of a stage."""


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of a compressed file. Raises DataError when they are too many for the packed ones read."""

    def __init__(self, path: Path, compression: str, name: str) -> None:
        self._name, self._unpacked = name, 0
        self._packed = pa.OSFile(str(path))
        unpack: Any = partial(pa.CompressedInputStream, compression=compression)
        if compression == "xz":
            # as `lzma.LZMAFile`, which has no limit
            unpack = partial(DecompressReader, decomp_factory=lzma.LZMADecompressor, memlimit=WINDOW)
        self._stream = unpack(self._packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(min(len(buffer), BUFFER))
        buffer[: len(data)] = data
        self._unpacked += len(data)
        # by what was read of the file until now: a bomb ends before it fills the memory
        check_growth(self._name, self._packed.tell(), self._unpacked, "give the unpacked file")
        return len(data)

    def close(self) -> None:
        self._stream.close()
        self._packed.close()
        super().close()


def open_stream(path: Path, name: str) -> io.BufferedReader:
    """Open a file for reading bytes, decompressed. Reading raises DataError with its name for a decompression bomb."""
    with path.open("rb") as file:
        head = file.read(5)
    compression = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    raw = _Unpacked(path, compression, name) if compression else pa.OSFile(str(path))
    return io.BufferedReader(raw, BUFFER)


def max_cell() -> int:
    """Return the most bytes of a line or cell (`data.max_cell_mb`)."""
    return int(max_cell_mb.get() * MB)


def too_long(where: str) -> DataError:
    """Return the error for a line or cell of more than `data.max_cell_mb`."""
    return DataError(
        f"{where} is longer than {max_cell_mb.get():g} MB", "divide or shorten the text, or raise data.max_cell_mb"
    )


def check_width(columns: int, name: str) -> None:
    """Raise DataError for a file of more than MOST_COLUMNS columns."""
    if columns > MOST_COLUMNS:
        raise DataError(
            f"{name} has {columns:,} columns or more, and may have {MOST_COLUMNS:,}",
            "write a row for each text, with a column for each thing that is known of it",
        )


def grouped(rows: Iterable[tuple[Row, int]], columns: int) -> Iterator[list[Row]]:
    """Yield rows in lists of at most BATCH rows, MOST_CELLS cells and BATCH_BYTES characters. rows: each with its characters."""
    most, some, size = max(1, min(BATCH, MOST_CELLS // max(columns, 1))), list[Row](), 0
    for row, characters in rows:
        if some and (len(some) == most or size + characters > BATCH_BYTES):
            yield some
            some, size = [], 0
        some.append(row)
        size += characters
    if some:
        yield some


def whole_lines(file: Any, name: str) -> Iterator[Any]:
    """Yield a file's lines, bytes or text, with their ends. Raises DataError for one longer than `data.max_cell_mb`."""
    most, number = max_cell(), 0
    while line := file.readline(most + 1):
        number += 1
        if len(line) > most:
            raise too_long(f"{name} line {number}")
        yield line


def lines(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text without the newline). Raises DataError with the first line that is not UTF-8."""
    with file_errors(name), open_stream(path, name) as raw:
        for number, line in enumerate(whole_lines(raw, name), 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text.removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{name} line {number} is not UTF-8: {error.reason}", "convert the file to UTF-8"
                ) from error


@contextlib.contextmanager
def open_text(path: Path, name: str) -> Iterator[io.TextIOWrapper]:
    """Open a file as UTF-8 text. Raises DataError with the first line that is not UTF-8, found by reading again."""
    try:
        with file_errors(name), open_stream(path, name) as raw:
            yield io.TextIOWrapper(raw, "utf-8-sig", newline="")
    except UnicodeDecodeError:
        for _ in lines(path, name):
            pass
        raise


@contextlib.contextmanager
def file_errors(name: str) -> Iterator[None]:
    """Turn Arrow's and the system's errors into a DataError of one line with this name."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeEncodeError, EOFError, lzma.LZMAError) as error:
        what = " ".join(str(error).split())[:300].rstrip(".")
        raise DataError(
            f"{name} can't be read: {what}", "repair the file or fetch it again, or name its format with data.format"
        ) from error
