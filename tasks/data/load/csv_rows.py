"""Read csv and tsv files: every cell as it is written. Columns are strings."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from trnflow.tasks.data.load.streams import check_width, grouped, max_cell, open_text, too_long, whole_lines
from trnflow.tasks.data.load.tsv_lines import MOST_LINES, TsvLines
from trnflow.tasks.errors import DataError

UNNAMED = "Unnamed: "
"""Begins the name of a column without one, as pandas': its number, from 0, follows."""
MOST_BLANK = 1_000_000
"""Blank lines between two rows: a packed file may have billions."""
# Excel's first line, which is no row
_SEPARATOR = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)


class Dialect(NamedTuple):
    """How a file is written. first: lines before the header that are no rows."""

    delimiter: str
    first: int = 0


def open_csv(
    path: Path, name: str, delimiters: str
) -> tuple[pa.Schema, Callable[[list[str]], Iterator[pa.RecordBatch]], Callable[[], list[str]]]:
    """Open a file; return its schema, a function from column names to batches, and one that returns remarks
    on the rows read. delimiters: of which the header shows one. Raises DataError."""
    dialect, tsv = _dialect_of(path, name, delimiters), TsvLines(name)
    with contextlib.closing(_records(path, name, dialect, tsv)) as records:
        cells = next(records, [])
    check_width(len(cells), name)
    header = [cell if cell.strip() else f"{UNNAMED}{number}" for number, cell in enumerate(cells)]

    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        place_of = {column: place for place, column in enumerate(header)}
        places = [place_of[column] for column in columns]
        records = islice(_records(path, name, dialect, tsv), 1, None)
        for batch in grouped(((record, sum(map(len, record))) for record in records), len(header)):
            cells = list(zip(*batch, strict=True))
            yield pa.record_batch([pa.array(cells[place], pa.string()) for place in places], names=columns)

    def remarks() -> list[str]:
        given = [column for column, cell in zip(header, cells, strict=True) if column != cell]
        listed = ", ".join(given[:5]) + (f" and {len(given) - 5} more" if given[5:] else "")
        return [*([f"{name}: columns without a name are called {listed}"] if given else []), *tsv.remarks()]

    return pa.schema([(column, pa.string()) for column in header]), batches, remarks


def _dialect_of(path: Path, name: str, delimiters: str) -> Dialect:
    """Return the first delimiter that divides the header, or that Excel's line `sep=;` names."""
    csv.field_size_limit(max_cell())  # for the whole process
    with open_text(path, name) as text:
        number, header = next(
            ((number, line) for number, line in enumerate(whole_lines(text, name), 1) if line.strip()), (0, "")
        )
    if named := _SEPARATOR.fullmatch(header):
        return Dialect(named[1], number)
    with contextlib.suppress(csv.Error):  # `_records` names the line
        # spreadsheets write `;` where a comma is the decimal point
        for delimiter in delimiters:
            names = next(csv.reader([header], delimiter=delimiter))
            # with another delimiter a quoted name that holds it is cut, quotes and all
            if len(names) > 1 and not any('"' in name for name in names):
                return Dialect(delimiter)
    return Dialect(delimiters[0])


def _records(path: Path, name: str, dialect: Dialect, tsv: TsvLines) -> Generator[list[str]]:
    """Yield the header's cells, then each row's. Raises DataError with the line."""
    width, line, blanks = 0, 1 + dialect.first, 0
    with open_text(path, name) as text:
        lines: Iterator[str] = islice(whole_lines(text, name), dialect.first, None)
        if dialect.delimiter == "\t":
            lines = tsv.for_reader(lines, dialect.first + 1)

        def within_rows() -> Iterator[str]:
            for number, each in enumerate(lines, 1 + dialect.first):
                if number - line > MOST_LINES:
                    raise DataError(
                        f"{name} line {line}: a quote that begins here is not closed within {MOST_LINES:,} lines",
                        "close the quote, or double it if it is text",
                    )
                yield each

        reader = csv.reader(within_rows(), delimiter=dialect.delimiter, strict=True)
        try:
            for cells in reader:
                blank = len(cells) < 2 and not "".join(cells).strip()
                blanks = blanks + 1 if blank else 0
                if blanks > MOST_BLANK:
                    raise DataError(f"{name} line {line} follows {MOST_BLANK:,} blank lines", "remove the blank lines")
                # such a record may contain the records after it
                if len(cells) != width and not blank:
                    if width:
                        raise DataError(
                            f"{name} line {line} has {len(cells)} cell{'s' * (len(cells) != 1)}, the header {width}",
                            "repair the line: a cell that holds a delimiter or a line break is quoted",
                        )
                    width = len(cells)
                if width and len(cells) == width:
                    yield cells
                line = reader.line_num + 1 + dialect.first
        except csv.Error as error:
            if "field limit" in str(error):
                raise too_long(f"a cell of {name} line {line}") from error
            raise DataError(
                f"{name} line {line} is not csv: {error}",
                "quote the whole cell and double the quotes inside it, or give json lines or parquet",
            ) from error
