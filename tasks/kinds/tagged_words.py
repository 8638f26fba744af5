"""Read rows of words and tags, or of a text with spans of characters, as words with their places and IOB tags."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.written_lists import any_list

OUTSIDE = "O"
_TAG = re.compile(r"[BI]-(.+)", re.DOTALL)
_NAMES = ("label", "type", "entity", "tag", "entity_group")
"""Keys of a span's type."""
# characters of scripts without spaces stand alone
_ALONE = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_UNITS = re.compile(f"[{_ALONE}]|[^\\W{_ALONE}]+|[^\\w\\s]")
_OPENING, _CLOSING = r"""(\[{"'“„«‹¿¡""", r""".,;:!?)\]}"'”“»›…"""
_WRITTEN = re.compile(
    rf"[{_ALONE}]|(?<![^\s{_OPENING}])[{_OPENING}]|[{_CLOSING}](?=[{_CLOSING}]*(?!\S))"
    rf"|(?:(?![{_ALONE}])(?![{_CLOSING}]+(?!\S))\S)+"
)
_HANGUL = re.compile("[\uac00-\ud7a3]")
Word = tuple[int, int, str]
"""First character, end, tag."""


def _list_in(value: Any, what: str, where: str) -> list[Any]:
    """Return the elements of a cell: of a list, of a text that is one in JSON or Python, or of words with blanks between."""
    if isinstance(value, str):
        value = any_list(value) if value.lstrip().startswith("[") else value.split()
    if not isinstance(value, list):
        raise DataError(f"{where}: {what} is no list", "give a list in each row, or name another column")
    return value


def tags_of(value: Any, settings: Any, where: str) -> list[str]:
    """Return a row's tags by name. Raises DataError for a number without a name."""
    tags, named = _list_in(value, settings.target, where), settings.labels or ()
    for tag in tags:
        number = isinstance(tag, int) or str(tag).isdecimal()
        if number and not 0 <= int(tag) < len(named):
            raise DataError(
                f"{where}: the tag {tag!r} in {settings.target} is a number without a name",
                "name the tags in the order of their numbers: format.labels=[O, B-PER, I-PER, ...]",
            )
    return [named[int(tag)] if isinstance(tag, int) or str(tag).isdecimal() else str(tag) for tag in tags]


def type_of(tag: str, where: str) -> str:
    """Return the type in a tag, "" in O. Raises DataError for a tag that is not IOB."""
    match = _TAG.fullmatch(tag)
    if match is None and tag != OUTSIDE:
        raise DataError(f"{where}: the tag {tag!r} is no IOB", "write tags as O, B-TYPE and I-TYPE")
    return match[1] if match else ""


def tagged(words: Any, tags: Any, settings: Any, where: str) -> tuple[str, list[Word]]:
    """Return the text of a row's words, and these with their places and tags."""
    texts, named = _list_in(words, settings.words, where), tags_of(tags, settings, where)
    if len(texts) != len(named):
        raise DataError(
            f"{where}: {len(texts)} words in {settings.words} and {len(named)} tags in {settings.target}",
            "give each word a tag",
        )
    placed: list[Word] = []
    start = 0
    for number, (text, tag) in enumerate(zip(texts, named, strict=True), 1):
        if isinstance(text, bool) or not isinstance(text, str | int | float) or not str(text).strip():
            raise DataError(
                f"{where}: word {number} of {settings.words} is {text!r}, no text", "repair or drop the row"
            )
        type_of(tag, where)
        placed.append((start, start + len(str(text)), tag))
        start += len(str(text)) + 1
    return " ".join(map(str, texts)), placed


def joined_words(value: Any) -> str:
    """Return the text of a cell of words, as in training; a text that is no list in JSON or Python stays as it is."""
    words = value
    if isinstance(value, str) and value.startswith("["):
        words = any_list(value)
    return " ".join(map(str, words)) if isinstance(words, list) else str(value)


def spans_of(value: Any, column: str, where: str, text: str | None = None) -> list[tuple[int, int, str]]:
    """Return a row's spans, ascending: first character, end, type. A span is an object with start, end and label, or a
    list of these three. Raises DataError for a span whose own `text` is not what stands there in `text`."""
    spans = []
    for span in [] if value is None else _list_in(value, column, where):
        given = (
            span
            if isinstance(span, dict)
            else dict(zip(("start", "end", "label"), span, strict=False))
            if isinstance(span, list | tuple)
            else {}
        )
        start, end, kind = (
            given.get("start"),
            given.get("end"),
            next((given[name] for name in _NAMES if name in given), None),
        )
        if type(start) is not int or type(end) is not int or not isinstance(kind, str | int) or not str(kind):
            raise DataError(
                f"{where}: {span!r:.80} in {column} is no span", 'give {"start": 0, "end": 5, "label": "TYPE"}'
            )
        theirs = given.get("text")
        if text is not None and isinstance(theirs, str) and not _same_words(theirs, text[max(start, 0) : max(end, 0)]):
            raise DataError(
                f"{where}: the span {start} to {end} ({kind}) says {theirs!r:.80}, and there stands {text[start:end]!r:.80}",
                "count characters from 0, not bytes or UTF-16 units, and do not include the end",
            )
        spans.append((start, end, str(kind)))
    return sorted(spans)


def _same_words(one: str, other: str) -> bool:
    """Return whether texts are equal but for blanks, capitals and Unicode form."""
    plain = [" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in (one, other)]
    return plain[0] == plain[1]


def inside(text: str, spans: list[tuple[int, int, str]], where: str) -> list[tuple[int, int, str]]:
    """Return the spans. Raises DataError for one outside the text, without a word, or that overlaps another."""
    before = (0, 0, "")
    for span in spans:
        start, end, kind = span
        if not 0 <= start < end <= len(text):
            raise DataError(
                f"{where}: the span {start} to {end} ({kind}) lies outside the text of {len(text)} characters",
                "repair the span: it counts characters from 0, and its end is not included",
            )
        if not text[start:end].strip():
            raise DataError(f"{where}: the span {start} to {end} ({kind}) holds no word", "repair or drop the span")
        if start < before[1]:
            raise DataError(
                f"{where}: the spans {before[0]} to {before[1]} ({before[2]}) and {start} to {end} ({kind}) overlap",
                "keep one of them: a word has one tag",
            )
        before = span
    return spans


def cut(text: str, spans: list[tuple[int, int, str]]) -> list[Word]:
    """Return the words of a text, cut at the edges of spans, with their tags."""
    return [word for start, end, kind in _parts(text, spans) for word in _words(text, start, end, kind)]


def cut_word(example: dict[str, Any]) -> str:
    """Return the first word of an example that the edge of a span cuts, `Pari|s`; "" without one."""
    text = example["text"]
    for word, after in pairwise(example["label"]):
        start, at, end = word["start"], word["end"], after["end"]
        # a Korean particle, and a unit behind its number, are cut off on purpose
        is_meant = _HANGUL.match(text, at) or text[at - 1].isdigit() != text[at].isdigit()
        if at == after["start"] and _UNITS.fullmatch(text, start, end) and not is_meant:
            return f"{text[start:at]}|{text[at:end]}"
    return ""


def _parts(text: str, spans: list[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Yield the spans, and the text between them with the type ""."""
    at = 0
    for start, end, kind in spans:
        yield at, start, ""
        yield start, end, kind
        at = end
    yield at, len(text), ""


def _words(text: str, first: int, last: int, kind: str) -> Iterator[Word]:
    for number, (start, end) in enumerate(units_in(text, first, last)):
        yield start, end, f"{'I' if number else 'B'}-{kind}" if kind else OUTSIDE


def units_in(text: str, first: int = 0, last: int = sys.maxsize) -> Iterator[tuple[int, int]]:
    """Yield first character and end of each run of letters and digits, and of each other sign: of texts with spans."""
    return (match.span() for match in _UNITS.finditer(text, first, last))


def written_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield first character and end of what stands between blanks, the signs around it apart: where words were given."""
    return (match.span() for match in _WRITTEN.finditer(text))
