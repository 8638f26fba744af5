"""Find columns of words and their tags, or of spans of characters, in data that was looked at."""

from __future__ import annotations

import re
from typing import Any

from trnflow.flows.authoring.look import Column
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.kinds.written_lists import any_list

WORDS = ("words", "tokens", "text", "sentence")
"""Names that columns of words usually have, the likeliest first."""
# also of schemes that are refused later, with the row
_TAG = re.compile(r"O|[BIESLU]-.+", re.DOTALL)


def words_and_tags(columns: dict[str, Column], words: str | None, target: str | None) -> tuple[Column, Column] | None:
    """Return the columns of words and of tags, None without them. words, target: named by the user.

    Raises ConfigError for tags that are numbers alone, without names.
    """
    lists = {name: column for name, column in columns.items() if lists_of(column, (str, int))}
    named = [lists[target]] if target in lists else [*lists.values()]
    tags = [column for column in named if all(_TAG.fullmatch(str(tag)) for tag in _values(column))]
    numbers = [column for column in named if column.name.endswith("tags") and lists_of(column, (int,))]
    for column in tags or numbers:
        sizes = [*map(len, _lists(column))]
        others = [c for n, c in lists.items() if c is not column and words in (None, n) and lists_of(c, (str,))]
        alike = [other for other in others if [*map(len, _lists(other))] == sizes]
        if alike:
            best = min(alike, key=lambda c: WORDS.index(c.name) if c.name in WORDS else len(WORDS))
            return best, column
    return None


def spans_in(columns: dict[str, Column], target: str | None) -> Column | None:
    """Return the column of spans: objects with start and end, or lists of start, end and type."""
    return next((column for name, column in columns.items() if target in (None, name) and _is_spans(column)), None)


def refuse_numbers(column: Column, labels: Any) -> None:
    """Raise ConfigError for tags that are numbers, if the user names none."""
    if labels is None and any(isinstance(tag, int) for tag in _values(column)):
        raise ConfigError(
            f"{column.name} holds the numbers of tags, without names",
            "name them in the order of their numbers: format.labels=[O, B-PER, I-PER, ...]",
        )


def _values(column: Column) -> list[Any]:
    return [tag for value in _lists(column) for tag in value]


def _lists(column: Column) -> list[Any]:
    """Return the examples of a column of lists; [] of another. A CSV has lists as Python writes them."""
    lists = [any_list(value) if isinstance(value, str) and value[:1] == "[" else value for value in column.examples]
    return lists if all(isinstance(value, list) for value in lists) else []


def lists_of(column: Column, kinds: tuple[type, ...]) -> bool:
    """Return whether a column holds lists of values of these types."""
    lists = _lists(column)
    return bool(lists) and all(type(entry) in kinds for value in lists for entry in value)


def has_one_entry(column: Column) -> bool:
    """Return whether a column holds lists of one entry each."""
    lists = _lists(column)
    return bool(lists) and all(len(value) == 1 for value in lists)


def _is_spans(column: Column) -> bool:
    spans = _values(column)
    return bool(spans) and all(
        {"start", "end"} <= span.keys()
        if isinstance(span, dict)
        else isinstance(span, list | tuple) and [*map(type, span)] == [int, int, str]
        for span in spans
    )
