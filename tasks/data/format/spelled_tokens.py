"""Find special tokens spelled in messages (such as `</s>`), which the tokenizer must read as ordinary text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from trnflow.tasks.data.format.conversation import Conversation, Row

PRIVATE = range(0xF0000, 0xFFFFC)
"""Private-use characters that stand for special tokens; the next two are `sandbox.MARKS`."""


def special_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for special tokens, the longest first, and for `sandbox.MARKS`."""
    from trnflow.tasks.data.format.sandbox import MARKS

    return re.compile("|".join(re.escape(name) for name in sorted((*names, *MARKS), key=len, reverse=True)))


def stand_ins_for(given: Conversation, special: re.Pattern[str] | None) -> dict[str, str]:
    """Return {token spelled in a conversation: a private-use character that does not occur in it}."""
    texts: list[str] = []
    _add_strings(given, texts)
    # while a template is rendered, a private-use character stands for each token
    written = "\0".join(texts)
    spelled = sorted({*special.findall(written)}) if special else []
    if not spelled:
        return {}
    used = set(written)
    return dict(zip(spelled, (chr(code) for code in PRIVATE if chr(code) not in used), strict=False))


def _add_strings(value: Any, to: list[str]) -> None:
    """Append all strings in a JSON value, keys included, to `to`."""
    if isinstance(value, str):
        to.append(value)
    elif isinstance(value, dict):
        to.extend(value)
        _add_strings([*value.values()], to)
    elif isinstance(value, list | tuple):
        for entry in value:
            _add_strings(entry, to)


def replace_spelled(given: Conversation, stand_ins: dict[str, str]) -> Conversation:
    """Return the conversation with each spelled token replaced by its stand-in, in all texts but roles."""
    if not stand_ins:
        return given
    spelled = _spelled(stand_ins)

    def replaced(value: Any) -> Any:
        if isinstance(value, str):
            return spelled.sub(lambda match: stand_ins[match[0]], value)
        if isinstance(value, dict):
            return {replaced(name): replaced(entry) for name, entry in value.items()}
        return [replaced(entry) for entry in value] if isinstance(value, list | tuple) else value

    messages = [{**replaced(message), "role": message["role"]} for message in given.messages]
    return Conversation(messages, *map(replaced, given[1:]))


def replace_in_pieces(pieces: list[tuple[str, bool]], stand_ins: dict[str, str]) -> list[tuple[str, bool]]:
    """Return pieces of a text, (text, flag), with each token that the text spells replaced; one that lies in several pieces
    has their flags' `and`."""
    whole, flags = "".join(text for text, _ in pieces), [flag for text, flag in pieces for _ in text]
    letters: list[tuple[str, bool]] = []
    at = 0
    for match in _spelled(stand_ins).finditer(whole):
        letters += zip(whole[at : match.start()], flags[at : match.start()], strict=True)
        letters.append((stand_ins[match[0]], all(flags[match.start() : match.end()])))
        at = match.end()
    letters += zip(whole[at:], flags[at:], strict=True)
    return [
        ("".join(letter for letter, _ in run), flag) for flag, run in groupby(letters, key=lambda letter: letter[1])
    ]


def _spelled(stand_ins: dict[str, str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(stand_ins, key=len, reverse=True))))


def split_spelled(parts: list[Row], names: dict[str, str]) -> Iterator[Row]:
    """Yield the parts with each stand-in as a part of its own, the token, with `plain` True. names: {character: token}."""
    for part in parts:
        texts = [*filter(None, re.split(f"([{''.join(names)}])", part["text"]) if names else [part["text"]])]
        for number, text in enumerate(texts, 1):
            ends = part.get("ends_prompt", False) and number == len(texts)
            yield {**part, "text": names.get(text, text), "plain": text in names, "ends_prompt": ends}
