"""The first line of a table: whether it names the columns, and what to do if it does not."""

from __future__ import annotations

import re
import shlex
from itertools import islice

from trnflow.tasks.data.load.labels import is_number
from trnflow.tasks.data.load.readers import RowReader
from trnflow.tasks.errors import ConfigError

LONGEST_NAME = 100
"""Characters of a column's name; a longer cell is a text."""
_AS_TABLE = "data.format=tsv reads tabs (the first line names the columns); else save it as csv, with commas"
FASTTEXT = "__label__"
_FROM_FASTTEXT = r"sed -E 's/^__label__([^ ]+) /\1\t/; 1i label\ttext' {} > rows.tsv"
# a token and its tag, such as `Paris B-location`
_TAGGED = re.compile(rb"[^\t ]+[\t ](.*[\t ])?(O|[BIES]-[^\t ]+)\s*")


def refuse_tags(name: str, head: bytes) -> None:
    """Raise ConfigError for a token and its tag a line, which CoNLL's files hold."""
    lines = [line for line in head.splitlines()[:-1] if line.strip()]
    if len(lines) > 1 and all(map(_TAGGED.fullmatch, lines)):
        raise ConfigError(
            f"{name} has a token and its tag in each line (CoNLL), which its name does not show",
            "data.format=conll reads it",
        )


def check_header(rows: RowReader, kind: str) -> None:
    """Raise ConfigError for a table whose delimiter is another, or whose first line holds no names."""
    names = rows.schema.names
    if kind == "txt":
        first = [text for batch in islice(rows.batches(["text"]), 1) for text in batch.column(0).to_pylist()[:50]]
        for mark, name in (("\t", "tab"), (";", "`;`"), ("|", "`|`"), (FASTTEXT, FASTTEXT)):
            counts = {text.count(mark) for text in first}
            if len(first) > 1 and len(counts) == 1 and counts != {0}:
                raise ConfigError(
                    f"{rows.name} is a table rather than a text: each line has {counts.pop()} {name}",
                    _AS_TABLE if mark != FASTTEXT else f"make it a table: {_FROM_FASTTEXT.format(rows.name)}",
                )
    if kind not in ("csv", "tsv") or not names:
        return
    if len(names) == 1 and "\t" in names[0]:
        error = f"{rows.name} is separated by tabs, not by commas"
        if _is_row(cells := names[0].split("\t")):
            raise ConfigError(f"{error}, and {no_names(cells)}", name_columns(rows.name, "tsv", cells))
        raise ConfigError(error, "data.format=tsv reads it")
    if _is_row(names):
        raise ConfigError(f"{rows.name}: {no_names(names)}", name_columns(rows.name, kind, names))


def _is_row(names: list[str]) -> bool:
    return any(is_number(name) or len(name.split()) > 6 or len(name) > LONGEST_NAME for name in names)


def no_names(cells: list[str]) -> str:
    return f"the first line looks like a row, not like names of columns: {', '.join(cell[:30] for cell in cells[:4])}"


def name_columns(file: str, kind: str, cells: list[str]) -> str:
    """Return how to put a line of names before a table's first row."""
    usual = ["text", "label", "id"] if len(cells) < 4 else [f"column{number + 1}" for number in range(len(cells))]
    names = usual[: len(cells)]
    if kind == "csv":
        return f"put a line with names before it, such as {','.join(names)}, with what is between the cells of others"
    # quotes are doubled, since they are text where a program wrote no names
    named = "\\t".join(names)
    rows = f'cut -f1-{len(cells)} {shlex.quote(file)} | sed \'s/"/""/g; s/[^\\t]*/"&"/g\''
    return f"put a line with names of your choice before it: (printf '{named}\\n'; {rows}) > rows.tsv"
