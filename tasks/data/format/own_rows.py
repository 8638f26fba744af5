"""Call the user's `format.make` on rows, and check what it returns. Raises DataError, which names the row."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.conversation import Row, parsed
from trnflow.tasks.data.format.templates import Limit
from trnflow.tasks.errors import DataError, TrnflowError
from trnflow.tasks.keys.own_functions import function_of, own_error

HOOK = "format.make"
FIX = "correct it, or return None for rows to leave out; `trnflow preview` shows what it makes"

TAKES = {
    "classification": ('a str, {"text": str, "label": a label\'s name} or None', {"text", "label"}),
    "instruction": ("a str, the prompt, or None", set[str]()),
    "chat": ('{"messages": [...]} or None', {"messages"}),
    "text": ("a str or None", set[str]()),
}
"""{task: (what `make` returns, in words; the names of a dict)}; other tasks read their targets from the row, as `text`."""

OwnMake = Callable[[Row, str], Row | None]
"""Makes {"text"}, {"text", "label"} or {"messages"} of a row and its name for errors; None leaves it out."""


def own_make(
    config: FormatConfig, code: Source, nested: Collection[str], labels: list[str] | None, limit: Limit
) -> OwnMake:
    """Import the user's function, and return it with its checks.

    nested: columns of JSON text; labels: by id, None to predict; limit: the context in which it is called for a row.
    """
    function, is_plain = function_of(code, HOOK), not nested and not labels

    def given(row: Row, where: str) -> Row:
        if is_plain:
            return row.copy()
        objects = {name: parsed(row, name, where) for name in nested if name in row}
        label = {"label": labels[row["label"]]} if labels and row.get("label") is not None else {}
        return {**row, **objects, **label}

    def make(row: Row, where: str) -> Row | None:
        theirs = given(row, where)
        try:
            with limit(where):
                made = function(theirs)
        except TrnflowError:
            raise
        except (Exception, SystemExit) as error:
            raise own_error(code, error, f"at {shown(where)}", FIX) from error
        # a second copy: a list in the first may have been changed in place
        if theirs != (before := row if is_plain else given(row, where)):
            changed = [name for name in before.keys() | theirs.keys() if theirs.get(name) != before.get(name)]
            what = f"{config.make} changes its row ({', '.join(sorted(changed))})"
            raise DataError(f"{shown(where)}: {what}", "let it work on a copy: row = dict(row)")
        return _checked(made, config, labels, where)

    return make


def shown(where: str) -> str:
    """Return a row's name as `train row 17`."""
    return where.removeprefix("split ")


def _checked(made: Any, config: FormatConfig, labels: list[str] | None, where: str) -> Row | None:
    """Return what a function made of a row as a dict; None for a blank text."""
    if made is None:
        return None
    words, names = TAKES.get(config.task, TAKES["text"])
    if isinstance(made, str) and config.task != "chat":
        result: Meta = {"text": made}
    elif isinstance(made, dict) and made.keys() == names and names:
        result = dict(made)
    else:
        kind = (
            f"a dict with {', '.join(map(str, made)) or 'nothing'}" if isinstance(made, dict) else type(made).__name__
        )
        raise DataError(
            f"{shown(where)}: {config.make} returned {kind}", f"with format.task: {config.task} return {words}"
        )
    if "label" in result and labels:
        result["label"] = _label(result["label"], config, labels, where)
    if "text" not in result:
        return result
    _check_text(result["text"], config, where)
    return result if result["text"].strip() else None


def _check_text(text: Any, config: FormatConfig, where: str) -> None:
    if not isinstance(text, str):
        raise DataError(f"{shown(where)}: {config.make} returned a text that is {type(text).__name__}", "return a str")
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{shown(where)}: {config.make} returned a text that is no UTF-8: {error.reason}", FIX
        ) from error


def _label(label: Any, config: FormatConfig, labels: list[str], where: str) -> int:
    if label not in labels:
        raise DataError(
            f"{shown(where)}: {config.make} returned the label {label!r}", f"the labels are {', '.join(labels)}"
        )
    return labels.index(label)
