"""Find the characters of a turn that are not trained on, where a message's fields say so of pieces of its text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from trnflow.tasks.data.format.training_fields import THINKING, Segment, Training
from trnflow.tasks.errors import DataError

Row = dict[str, Any]
Span = tuple[int, int]

HOLE = "\U0010fffd"
"""A private-use character that stands for each text of a message, to see where a template writes it."""


def with_holes(message: Row, training: Training) -> Row:
    """Return a message with a HOLE for each text of which the segments are known."""
    names = THINKING if training.thinking else ()
    thinking = {name: HOLE for name in names if name in message}
    if not training.content:
        return {**message, **thinking}
    content = message.get("content")
    parts = [{**part, "text": HOLE} for part in content] if isinstance(content, list) else HOLE
    return {**message, **thinking, "content": parts}


def held_out(text: str, holes: str, message: Row, training: Training, where: str) -> list[Span]:
    """Return where a rendered conversation has text of a message that is not trained on.

    text: as rendered; holes: the same with the message's texts as `with_holes` has them. Raises DataError if the template
    changes the texts.
    """
    groups = [training.thinking] if training.thinking else []
    if training.content:
        groups += (
            [[part] for part in training.content] if isinstance(message.get("content"), list) else [training.content]
        )
    between, spans, at = holes.split(HOLE), [], 0
    if len(between) != len(groups) + 1:
        raise _rewritten(where)
    for before, group, after in zip(between, groups, between[1:], strict=False):
        at += len(before)
        written = _written("".join(piece for piece, _ in group), text, at, after)
        if written is None or not text.startswith(before, at - len(before)):
            raise _rewritten(where)
        spans += list(_untrained(group, at - written[0], (at, at + written[1])))
        at += written[1]
    if text[at:] != between[-1]:
        raise _rewritten(where)
    return spans


def _written(given: str, text: str, at: int, after: str) -> tuple[int, int] | None:
    """Return (characters cut from its beginning, characters written) of a text at `at`; None for another text."""
    # templates strip blanks at the ends
    for written in (given, given.strip(), given.rstrip(), given.lstrip()):
        if text.startswith(written + after[:1], at):
            return given.index(written), len(written)
    return None


def _untrained(group: Iterable[Segment], at: int, inside: Span) -> Iterator[Span]:
    """Yield the spans of segments, the first at `at`, that are not trained on, cut to `inside`."""
    for piece, trained in group:
        start, end = max(at, inside[0]), min(at + len(piece), inside[1])
        if not trained and start < end:
            yield start, end
        at += len(piece)


def without(spans: Iterable[Span], out: Iterable[Span]) -> list[Span]:
    """Return spans without the characters of others. Both ascend."""
    kept = []
    for start, end in spans:
        for first, last in out:
            if start < last and first < end:
                kept += [(start, first)] if start < first else []
                start = min(last, end)
        if start < end:
            kept.append((start, end))
    return kept


def _rewritten(where: str) -> DataError:
    return DataError(
        f"{where}: the chat template rewrites its text, so the pieces that are trained on can't be told apart",
        "say of the whole turn whether it is trained on (`train`), or set format.chat_template to another template",
    )
