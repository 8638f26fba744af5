"""Tell lines of a tsv that are rows from those that are parts of a quoted cell.

Most programs that write tsv know no quotes: a quote at the start of a cell is text, and what happens to close it may stand
many rows below. So lines of one quoted cell are rows if each has the header's number of tabs. Takes the memory of one cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from trnflow.tasks.data.load.streams import max_cell

MOST_LINES = 200_000
"""Lines of a row: a quote that nobody closes would take all that follow."""
# the rest of a quoted cell
_REST = re.compile(r'(?:[^"]|"")*+')
# a line whose last cell begins with a quote that it does not close
_OPEN = re.compile(r'(?:(?:"(?:[^"]|"")*+"|[^"\t][^\t]*+|)\t)*+"(?:[^"]|"")*+')


class _Quote(Enum):
    """What a line does with the quote that was open at its start."""

    OPEN = 1
    CLOSED = 2
    BROKEN = 3  # what follows the closing quote is no tab


class TsvLines:
    """The lines of one file.

    Attributes:
        rows: Lines in quotes that are rows; first: the number of the first one.
        unsure: The number of the first line of a quoted cell with line breaks and tabs that is read as one; 0 without one.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.rows = self.first = self.unsure = 0

    def remarks(self) -> list[str]:
        """Return what users must know of the lines that were read."""
        remarks = []
        if self.rows:
            remarks.append(
                f"{self._name}: {self.rows} lines, from line {self.first} on, are read as a row each, their quotes as text: "
                "between quotes, each has the header's number of tabs"
            )
        if self.unsure:
            remarks.append(
                f"{self._name} line {self.unsure}: a quoted cell with line breaks and tabs is read as one; if its lines are "
                "rows, remove the quotes"
            )
        return remarks

    def for_reader(self, lines: Iterator[str], number: int) -> Iterator[str]:
        """Yield the file's lines for a csv reader; those that are rows with each cell quoted. number: of the first line."""
        self.rows = self.first = self.unsure = 0
        tabs, numbered = -1, enumerate(lines, number)
        for number, line in numbered:
            if tabs < 0 and line.strip():
                tabs = line.count("\t")
                # one column has no tabs to go by, and a program that quotes names knows quotes
                if tabs == 0 or '"' in line:
                    yield line
                    yield from lines
                    return
            if '"' in line and _OPEN.fullmatch(line):
                yield from self._cell(number, line, (following for _, following in numbered), tabs)
            else:
                yield line

    def _cell(self, number: int, line: str, lines: Iterator[str], tabs: int) -> Iterator[str]:
        """Yield the lines from `line`, number `number`, to that in which its open quote is closed."""
        group, size, quote = [line], len(line), _Quote.OPEN
        is_row = line.count("\t") == tabs
        while (
            is_row
            and quote is _Quote.OPEN
            and size <= max_cell()
            and len(group) < MOST_LINES
            and (line := next(lines, ""))
        ):
            group.append(line)
            size, quote = size + len(line), _after(line)
            is_row = line.count("\t") == tabs or not line.strip()
        if is_row and quote is not _Quote.BROKEN:
            self.first, self.rows = self.first or number, self.rows + sum(bool(each.strip()) for each in group)
            yield from map(_quoted, group)
            return
        more = sum(each.count("\t") for each in group) - tabs
        yield from group
        while quote is _Quote.OPEN and (line := next(lines, "")):
            quote, more = _after(line), more + line.count("\t")
            yield line
        if more > 0:
            self.unsure = self.unsure or number


def _after(line: str) -> _Quote:
    match = _REST.match(line)
    rest = line[match.end() :] if match else ""
    if not rest:
        return _Quote.OPEN
    if not rest[1:].rstrip("\r\n"):
        return _Quote.CLOSED
    if rest[1] != "\t":
        return _Quote.BROKEN
    return _Quote.OPEN if _OPEN.fullmatch(rest[2:]) else _Quote.CLOSED


def _quoted(line: str) -> str:
    """Return a line with each cell quoted, so that quotes in it are text."""
    body = line.rstrip("\r\n")
    if not body.strip():
        return line
    return "\t".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in body.split("\t")) + line[len(body) :]
