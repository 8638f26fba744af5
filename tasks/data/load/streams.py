"""Open a data file as bytes, text or lines. gzip, bzip2 and zstd are recognised by the first bytes, not by name."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from trnflow.tasks.errors import DataError

BUFFER = 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}


def open_stream(path: Path) -> io.BufferedReader:
    """Open a file for reading bytes, decompressed."""
    with path.open("rb") as file:
        head = file.read(4)
    compression = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    return io.BufferedReader(pa.input_stream(str(path), compression=compression), BUFFER)


def lines(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, stripped text). Raises DataError with the first line that is not UTF-8."""
    with file_errors(name), open_stream(path) as raw:
        for number, line in enumerate(raw, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{name} line {number} is not UTF-8: {error.reason}", "convert the file to UTF-8"
                ) from error


@contextlib.contextmanager
def open_text(path: Path, name: str) -> Iterator[io.TextIOWrapper]:
    """Open a file as UTF-8 text. Raises DataError with the first line that is not UTF-8, found by reading again."""
    try:
        with file_errors(name), open_stream(path) as raw:
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
    except (pa.ArrowException, OSError, UnicodeEncodeError, EOFError) as error:
        what = " ".join(str(error).split())[:300].rstrip(".")
        raise DataError(
            f"{name} can't be read: {what}", "repair the file or fetch it again, or name its format with data.format"
        ) from error
