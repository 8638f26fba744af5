"""Read the headers of a Parquet file's pages, which alone say what reading decodes: a footer may say less.

No page is decompressed. Costs about 20 us a page, of which usual writers make one for each megabyte or 20,000 values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import pyarrow.parquet as pq

from trnflow.tasks.errors import DataError

USUAL, LONGEST = 1 << 12, 1 << 24
"""Bytes of a header that are read at first, and at most, as by Arrow."""
PADDING = 100
"""Bytes behind a chunk that Arrow reads, too, in files of old versions of parquet-mr."""
_UNPACKED, _PACKED, _VALUES = 2, 3, 1
_KINDS = (5, 7, 8)
"""The numbers of fields of Parquet's PageHeader; `_VALUES` is one of those in _KINDS: of data pages and dictionaries."""


class Page(NamedTuple):
    """What a page's header says. unpacked: its bytes; values: how many it holds."""

    unpacked: int
    values: int


def pages(file: IO[bytes], chunk: pq.ColumnChunkMetaData, name: str, padding: int) -> Iterator[Page]:
    """Yield the pages of a column's chunk. name: the file's, for errors; padding: bytes behind the chunk that are read, too.

    Raises DataError for a header that can't be read.
    """
    starts = (chunk.data_page_offset, chunk.dictionary_page_offset or 0)
    at = min(start for start in starts if start > 0) if any(start > 0 for start in starts) else 0
    end = at + chunk.total_compressed_size
    while at < end + padding:
        try:
            page, size = _page(file, at)
        except (ValueError, IndexError, RecursionError) as error:
            if at >= end:
                return
            raise DataError(f"{name}: a page's header at byte {at:,} can't be read", "write the file anew") from error
        yield page
        at += size


def _page(file: IO[bytes], at: int) -> tuple[Page, int]:
    """Return the page that begins at a byte, and its bytes in the file with the header."""
    for most in (USUAL, LONGEST):
        file.seek(at)
        data = file.read(most)
        try:
            header, size = _value(12, data, 0)
            break
        except IndexError:
            if len(data) < most or most == LONGEST:
                raise
    unpacked, packed = header[_UNPACKED], header[_PACKED]
    values = [header[kind][_VALUES] for kind in _KINDS if isinstance(header.get(kind), dict)]
    counts = [unpacked, packed, *values]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise ValueError("a size is no number from 0")
    return Page(unpacked, max(values, default=0)), size + packed


def _value(kind: int, data: bytes, at: int) -> tuple[Any, int]:
    """Return (a value of Thrift's compact protocol, its end). Raises IndexError where data end before, ValueError."""
    if kind in (1, 2):  # true and false, which stand in the field's head
        return None, at
    if kind == 3:
        return data[at], at + 1
    if kind in (4, 5, 6):
        number, at = _varint(data, at)
        return (number >> 1) ^ -(number & 1), at
    if kind == 7:
        return None, at + 8
    if kind == 8:
        size, at = _varint(data, at)
        return None, at + size
    if kind in (9, 10):
        count, kind = data[at] >> 4, data[at] & 15
        count, at = _varint(data, at + 1) if count == 15 else (count, at + 1)
        for _ in range(count):
            data[at]  # a list may say that it is longer than the data
            at = at + 1 if kind in (1, 2) else _value(kind, data, at)[1]
        return None, at
    if kind == 12:
        return _struct(data, at)
    raise ValueError(f"{kind} is no type of a page's header")


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            coded, at = _varint(data, at)
            number = (coded >> 1) ^ -(coded & 1)
        fields[number], at = _value(head & 15, data, at)
    return fields, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
        shift += 7
    raise ValueError("a number has more than 64 bits")
