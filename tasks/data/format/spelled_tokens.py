"""Find special tokens that a user or an assistant spells in a message (such as `</s>`), and mark them, so that the
tokenizer reads them as ordinary text.

Before a template is rendered, a private-use character of Unicode replaces each spelled token. After the rendering, the
text is cut into parts (pieces): each of these characters becomes the token again, as a part of its own that is marked
`plain`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trnflow.tasks.data.format.conversation import Conversation, Row

PRIVATE = range(0xF0000, 0xFFFFC)
"""Private-use characters of Unicode that stand for special tokens while a template is rendered. The next two characters
are `sandbox.MARKS`."""


def special_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return a compiled pattern that finds special tokens, such as `</s>`, in messages; where several begin at one
    place, the longest.

    names: the texts of the tokenizer's special tokens. The pattern also finds two private-use characters with which
    this project marks text inside templates (`sandbox.MARKS`)."""
    from trnflow.tasks.data.format.sandbox import MARKS

    return re.compile("|".join(re.escape(name) for name in sorted((*names, *MARKS), key=len, reverse=True)))


def stand_ins_for(given: Conversation, special: re.Pattern[str] | None) -> dict[str, str]:
    """Choose a stand-in for each special token, such as `</s>`, that is spelled in a conversation: returns {token: a
    private-use character of Unicode that does not occur in the conversation}. special: the pattern from
    `special_pattern`; None finds no tokens."""
    texts: list[str] = []
    _add_strings(given, texts)
    written = "\0".join(texts)
    spelled = sorted({*special.findall(written)}) if special else []
    if not spelled:
        return {}
    used = set(written)
    return dict(zip(spelled, (chr(code) for code in PRIVATE if chr(code) not in used), strict=False))


def _add_strings(value: Any, to: list[str]) -> None:
    """Append all strings in a JSON value, keys included, to the list `to`."""
    if isinstance(value, str):
        to.append(value)
    elif isinstance(value, dict):
        to.extend(value)
        _add_strings([*value.values()], to)
    elif isinstance(value, list | tuple):
        for item in value:
            _add_strings(item, to)


def replace_spelled(given: Conversation, stand_ins: dict[str, str]) -> Conversation:
    """Return a copy of the conversation in which each special token that somebody wrote is replaced by the private-use
    character that stands for it, in all texts but the roles of messages. stand_ins: {token: character}, from
    `stand_ins_for`."""
    if not stand_ins:
        return given
    found = re.compile("|".join(map(re.escape, sorted(stand_ins, key=len, reverse=True))))

    def replaced(value: Any) -> Any:
        if isinstance(value, str):
            return found.sub(lambda match: stand_ins[match[0]], value)
        if isinstance(value, dict):
            return {replaced(name): replaced(item) for name, item in value.items()}
        return [replaced(item) for item in value] if isinstance(value, list | tuple) else value

    messages = [{**replaced(message), "role": message["role"]} for message in given.messages]
    return Conversation(messages, *map(replaced, given[1:]))


def split_spelled(parts: list[Row], names: dict[str, str]) -> Iterator[Row]:
    """Yield the parts (pieces) of a rendered text with each private-use character replaced by the special token that it
    stands for. Each such token becomes a part of its own with `plain` True, which the tokenizer reads as ordinary text;
    in all other parts `plain` is False.

    parts: dicts with `text` and `train` (whether the piece is trained on); names: {character: token}."""
    for part in parts:
        texts = re.split(f"([{''.join(names)}])", part["text"]) if names else [part["text"]]
        for text in filter(None, texts):
            yield {**part, "text": names.get(text, text), "plain": text in names}
