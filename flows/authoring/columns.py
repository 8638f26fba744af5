"""Find the columns of texts and of classes."""

from __future__ import annotations

import json
import re

from trnflow.flows.authoring.draft import Question, listed
from trnflow.flows.authoring.look import Column
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.multi_label import BITS
from trnflow.tasks.kinds.written_lists import bare, written_list

TEXTS = (
    "text", "body", "content", "review", "review_text", "review_body", "sentence", "tweet", "comment", "message",
    "description", "utterance", "document", "abstract", "question", "query", "title", "headline",
)  # fmt: skip
LABELS = (
    "label", "labels", "class", "category", "target", "sentiment", "intent", "topic", "emotion", "tag", "type", "y",
    "rating", "stars", "score", "is_spam", "spam", "toxic", "priority", "department", "team",
)  # fmt: skip
"""Names that columns of texts and of classes usually have, the likeliest first."""
AMOUNTS = ("score", "target", "label", "labels", "y", "rating", "value", "similarity")
"""Names of columns that are meant to be predicted also where they hold amounts."""
ASIDE = (
    "lang", "language", "locale", "source", "split", "fold", "user", "author", "country", "gender", "year", "month", "url",
)  # fmt: skip
"""Names of columns that are rarely what is to be predicted."""
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"),
    ("text", "text_pair"), ("sentence_a", "sentence_b"), ("question", "passage"), ("query", "passage"),
    ("query", "document"), ("question", "document"), ("question", "sentence"),
    ("text_a", "text_b"), ("text_1", "text_2"), ("sentence_1", "sentence_2"), ("question_1", "question_2"), ("sent1", "sent2"),
)  # fmt: skip
"""Two texts that are judged together."""
BELONGING = (
    ("anchor", "positive"), ("query", "positive"), ("question", "positive"), ("sentence1", "sentence2"),
    ("query", "passage"), ("question", "answer"), ("text", "text_pair"),
)  # fmt: skip
"""Two texts that belong together, by the names of embeddings' data."""
# a comma for the point, thousands apart, a unit
_NUMBER = re.compile(r"[$€£]?\s*[+-]?\d+([.,' \u00a0]\d{3})*([.,]\d+)?\s*[%$€£]?")
AS_VECTORS = "a vector for each text, to search with"
FEW = 200
"""More classes than these are no likely label, unless the column's name says so."""


def column_of(columns: dict[str, Column], name: str, setting: str) -> Column:
    if name not in columns:
        raise ConfigError(f"{setting}: there is no column {name}", f"there are {listed(columns)}")
    return columns[name]


def find_texts(columns: dict[str, Column], wanted: str | list[str] | None, without: set[str | None]) -> list[Column]:
    """Return the columns of texts, the likeliest first."""
    if wanted:
        return [column_of(columns, name, "data.text") for name in ([wanted] if isinstance(wanted, str) else wanted)]
    plain = [column for name, column in columns.items() if name not in without]
    pair = known_pair([column for column in plain if not column.nested and column.numbers is None and column.words > 1])
    # a text of a pair may stand in several rows
    texts = [column for column in plain if column.is_text or any(column is each for each in pair)]
    if not texts:  # short ones, such as search queries
        usual = [column for name, column in columns.items() if name.lower() in TEXTS and not column.can_be_classes]
        texts = [column for column in usual if not column.nested and column.numbers is None and column.examples]
    half = max((column.words for column in texts), default=0.0) / 2  # a title is not what a text column's name says
    return sorted(texts, key=lambda column: (column.words < half, _place(column.name, TEXTS), -column.words))


def belonging(columns: dict[str, Column]) -> tuple[str, str] | None:
    """Return the names of two columns whose texts belong together, by their names; None without."""
    by_name = {name.lower(): name for name in columns}
    return next(((by_name[a], by_name[b]) for a, b in BELONGING if {a, b} <= by_name.keys()), None)


def known_pair(texts: list[Column]) -> list[Column]:
    by_name = {column.name.lower(): column for column in texts}
    return next(([by_name[a], by_name[b]] for a, b in PAIRS if {a, b} <= by_name.keys()), [])


def _place(name: str, names: tuple[str, ...]) -> int:
    return (*names, name.lower()).index(name.lower())


def find_label(columns: dict[str, Column], texts: list[Column], asked: bool) -> list[Column] | None:
    """Return the column of the classes and others that may be it, None if nothing looks like classes. Raises Question."""
    rest = [column for column in columns.values() if column not in texts]
    if lists := next((column for column in rest if column.nested and column.name.lower() in LABELS), None):
        fields = [name for example in lists.examples[:1] if isinstance(example, dict) for name in example][:4]
        what = f"objects with the fields {', '.join(fields)}" if fields else "lists of more than names or numbers"
        raise ConfigError(
            f"{lists.name} holds {what}",
            "give rows a column with the label alone, or with a list of labels; or name another column: data.label=COLUMN",
        )
    siblings = {f"{column.name}_name" for column in rest}  # load_data reads the names of the classes there
    classes = [column for column in rest if column.can_be_classes and column.name not in siblings]
    named = sorted((c for c in classes if c.name.lower() in LABELS), key=lambda c: _place(c.name, LABELS))
    usual = [c for c in classes if c not in named and len(c.counts) <= FEW and c.name.lower() not in ASIDE]
    if not named and (dates := [c for c in rest if c.is_date and c.name.lower() in LABELS]):
        raise Question(
            f"{dates[0].name} holds dates: what is to be predicted?",
            {**dict(map(_as_label, [dates[0], *usual][:6])), "format.task=text": "nothing: learn to write such texts"},
        )
    bits = [c for c in classes if {value.lower() for value in c.counts} <= BITS.keys()]
    if len(bits) > 2 and (not named or (named[0] in bits and named[0].name.lower() not in AMOUNTS)):
        several = f"format.task=multi_label format.target={json.dumps([c.name for c in bits], ensure_ascii=False)}"
        raise Question(
            f"{len(bits)} columns hold 0 or 1: what is to be predicted? {listed({c.name: c for c in bits})}",
            {several: "a row has several of these labels", **dict(map(_as_label, [*named, *bits, *usual][:6]))},
        )
    measures = [c for c in rest if c.numbers and c.is_measure]
    # a column of integers that are all different is an id
    amounts = [c for c in measures if c.name.lower() in AMOUNTS] or [c for c in measures if not c.is_unique]
    if named or (not amounts and len(usual) == 1):
        return [*named, *usual]
    if alone := [c for c in rest if len(c.counts) == 1 and c.name.lower() in LABELS]:
        return alone  # which is refused with its one class
    open_ones = [*amounts, *usual, *(column for column in classes if column.name.lower() in ASIDE)]
    if len(open_ones) > 1 or (open_ones and not amounts):
        raise Question(
            f"which column holds what is to be predicted? {listed({column.name: column for column in open_ones})}",
            {**dict(map(_as_label, open_ones[:6])), "format.task=text": "none of them: learn to write such texts"},
        )
    if amounts:
        return amounts
    if written := [column for column in rest if is_written_amount(column)]:
        _ask_of_written(written[0], is_label=False)
    if asked:
        raise ConfigError(
            f"no column looks like classes: {listed(columns)}", "name them: data.text=COLUMN data.label=COLUMN"
        )
    return None


def _as_label(column: Column) -> tuple[str, str]:
    """Return the setting that makes a column the label, and what it then means."""
    if column.has_fractions:
        return f"data.label={column.name} >= {column.middle:g}", "two classes: below, and from there on"
    return f"data.label={column.name}", f"{column.describe()}{', as classes' * column.is_measure}"


def check_label(column: Column, is_rule: bool, is_given: bool, *, is_of_pair: bool) -> None:
    """Raise Question for amounts, unless the user named the column; DataError for one class alone."""
    if is_rule:
        return
    if len(column.counts) == 1 and not column.many:
        raise DataError(
            f"{column.name} is {next(iter(column.counts))!r} in every row that was read: there is nothing to tell apart",
            "give rows of other classes, or name another column: data.label=COLUMN",
        )
    if column.has_fractions or (column.is_measure and not is_given):
        choices = {
            f"format.task=regression format.target={column.name}": "amounts: a number is predicted",
            f"data.label={column.name} >= {column.middle:g}": "two classes: below, and from there on",
            **dict([_as_label(column)]),
            **({f"format.task=embedding format.score={column.name}": AS_VECTORS} if is_of_pair else {}),
            "format.task=text": "it is not to be predicted",
        }
        raise Question(f"{column.name} holds {column.describe()}: amounts, or classes?", choices)
    if not is_given and is_written_amount(column) and not any(is_several(value, column) for value in column.counts):
        _ask_of_written(column, is_label=True)
    several = "" if is_given else next((value for value in column.counts if is_several(value, column)), "")
    if several:
        raise Question(
            f"{column.name} holds several values in a row ({several})",
            {
                f"format.task=multi_label format.target={column.name}": "a row has several labels",
                f"data.label={column.name}": "each combination is a class",
            },
        )


def is_written_amount(column: Column) -> bool:
    """Return whether all its values are amounts that are not read as numbers, such as 1,5 and $12.50 and 60%."""
    plain = column.nested or column.numbers or column.is_date
    return not plain and bool(column.counts) and all(_NUMBER.fullmatch(value.strip()) for value in column.counts)


def _ask_of_written(column: Column, *, is_label: bool) -> None:
    """Raise Question for a column of `is_written_amount`. is_label: whether its values may be classes."""
    example = next((value for value in column.counts if not value.isdecimal()), next(iter(column.counts)))
    several = {f"format.task=multi_label format.target={column.name}": "a row has several labels"}
    raise Question(
        f"{column.name} holds texts such as {example}, which are not read as numbers: to predict amounts, write them "
        f"as 1234.5 in the file",
        {
            **(dict([_as_label(column)]) if is_label else {}),
            **(several if is_label and "," in example else {}),
            "format.task=text": "it is not to be predicted",
        },
    )


def is_several(value: str, column: Column) -> bool:
    """Return whether a value is a list of others: `4,27` where there are 4 and 27, or `['a', 'b']`, or `[a, b]`."""
    if written_list(value) is not None or (bare(value) != value.strip() and "," in value):
        return True
    parts = re.split(r"\s*[,;|]\s*", value.strip())
    return len(parts) > 1 and all(part in column.counts for part in parts)
