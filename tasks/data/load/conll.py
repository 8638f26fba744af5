"""Read CoNLL files: a line for each word, its columns apart by tabs or blanks, a blank line after each sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trnflow.tasks.data.load.streams import lines, max_cell, too_long
from trnflow.tasks.errors import DataError

WORDS, TAGS = "words", "tags"
"""The columns of rows: the first and the last column of the file."""
DOCUMENT = "-DOCSTART-"
BLANKS = " \t\r"
"""What is cut at the ends of lines: other blanks, such as U+00A0, may be words."""
_BLANKS = re.compile(r"[ \t]+")
_TAG = re.compile(r"O$|[A-Z]-.")


def sentences(path: Path, name: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield (words, tags) of each sentence. Lines of -DOCSTART- and comments (# and no tag at the end) are left out. Raises
    DataError with the line that has too few columns."""
    words: list[str] = []
    tags: list[str] = []
    width, size = _width(path, name), 0
    for number, line in lines(path, name):
        line = line.strip(BLANKS)
        cells = _cells(line)
        if not line and words:
            yield words, tags
            words, tags, size = [], [], 0
        size += len(line)
        if size > max_cell():
            raise too_long(f"the sentence of {name} line {number}")
        # a comment may have as many columns as a word, and a word may be #
        if (
            not line
            or cells[0] == DOCUMENT
            or (line.startswith("#") and (len(cells) != width or not _TAG.match(cells[-1])))
        ):
            continue
        if len(cells) != width or width < 2:
            what = "a word and no tag" if len(cells) < 2 else f"{len(cells)} columns, the lines before {width}"
            raise DataError(
                f"{name} line {number} has {what}: {line[:80]!r}",
                "give each line a word and a tag, apart by a tab or blank",
            )
        words.append(cells[0])
        tags.append(cells[-1])
    if words:
        yield words, tags


def unread_columns(path: Path, name: str) -> str:
    """Return which columns of a file rows do not have, in words; "" if they have all."""
    width = _width(path, name)
    return "" if width < 3 else f"{'column 2' if width == 3 else f'columns 2 to {width - 1}'} of {name}"


def _width(path: Path, name: str) -> int:
    """Return the columns of the first line that is of a word for sure; 0 without one."""
    for _, line in lines(path, name):
        if (line := line.strip(BLANKS)) and not line.startswith(("#", DOCUMENT)):
            return len(_cells(line))
    return 0


def _cells(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else _BLANKS.split(line)
