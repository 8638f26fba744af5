"""Conversations to the parts of a text, trained on in the assistant's turns alone.

A turn's text is found by rendering: what the template adds for the assistant's message to the prompt that stands before it
at inference. So the mask is the model's own view, end-of-turn token included, whatever the template looks like.
Special tokens that a message spells are no frame: they become parts of their own, marked `plain`.
Fails with DataError naming row and message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tasks.errors import ConfigError, DataError

Row = dict[str, Any]
Render = Callable[[list[Row], bool], str]

PRIVATE = range(0xF0000, 0xFFFFE)
"""Characters that no text should hold."""

ROLES = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
SHAREGPT = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "bing": "assistant",
    "function_call": "assistant", "function": "tool", "observation": "tool",
}  # fmt: skip


def messages_of(value: Any, where: str) -> list[Row]:
    """OpenAI's `role` and `content`, or ShareGPT's `from` and `value` -> `role`, `content` and whatever else is set."""
    return [_message(item, f"{where}: message {number}") for number, item in enumerate(value or [], 1)]


def templated(
    messages: list[Row], render: Render, where: str, *, last: bool, special: tuple[str, ...] = ()
) -> list[Row]:
    """Parts `text`, `train`, `plain` through a chat template. last: train on the assistant's last turn alone; special: what
    stands for one character each while the template writes, where a message spells it."""
    from jinja2 import TemplateError

    spelled = _stand_ins(messages, special)
    try:
        messages = _replaced(messages, spelled)
        whole = render(messages, False)
        spans = [_span(messages, index, whole, render, where) for index in _trained(messages, last)]
    except (TemplateError, TypeError, ValueError) as error:
        raise DataError(
            f"{where}: the chat template refuses the messages: {error}",
            "repair the row, or set format.chat_template to a template that takes it (`sections` takes any)",
        ) from error
    return list(_plain_apart(_cut(whole, spans), {letter: name for name, letter in spelled.items()}))


def sections(messages: list[Row], *, last: bool) -> Iterator[Row]:
    """Parts `text`, `train` under plain headings: `### User` and so on."""
    trained = _trained(messages, last)
    for number, message in enumerate(messages):
        before = "\n\n" if number else ""
        yield {"text": f"{before}### {ROLES[message['role']]}\n", "train": False}
        yield {"text": message.get("content") or "", "train": number in trained}


def _message(item: Any, where: str) -> Row:
    if not isinstance(item, dict):
        raise DataError(f"{where} is {str(item)[:60]!r}", "give role and content")
    given = {name: value for name, value in item.items() if value is not None}  # parquet fills what a message lacks
    role = given.pop("role", given.pop("from", None))
    content = given.pop("content", given.pop("value", None))
    role = SHAREGPT.get(str(role), role)
    if role not in ROLES:
        raise DataError(f"{where} has the role {role!r}", f"give role (one of {', '.join(ROLES)}) and content")
    return {"role": role, "content": content, **given}


def _trained(messages: list[Row], last: bool) -> list[int]:
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    return turns[-1:] if last else turns


def _span(messages: list[Row], index: int, whole: str, render: Render, where: str) -> tuple[int, int]:
    """Where in the text the turn of message `index` stands."""
    prompt, through = render(messages[:index], True), render(messages[: index + 1], False)
    if not (through.startswith(prompt) and whole.startswith(through)):
        raise ConfigError(
            f"format.chat_template: {where}: the text before message {index + 1} depends on what comes after it, "
            "so the assistant's turns can't be told apart",
            "set format.turns=last, or format.chat_template to a template that renders turn by turn",
        )
    return len(prompt), len(through)


def _cut(whole: str, spans: list[tuple[int, int]]) -> Iterator[Row]:
    at = 0
    for start, end in spans:
        if start > at:
            yield {"text": whole[at:start], "train": False}
        yield {"text": whole[start:end], "train": True}
        at = end
    if at < len(whole):
        yield {"text": whole[at:], "train": False}


def _stand_ins(messages: list[Row], special: tuple[str, ...]) -> dict[str, str]:
    """Special tokens that the messages spell, the longest first -> private characters that they don't hold."""
    texts = [*_strings(messages)]
    spelled = [name for name in special if any(name in text for text in texts)]
    if not spelled:
        return {}
    used = set().union(*texts)
    letters = (chr(code) for code in PRIVATE if chr(code) not in used)
    return dict(zip(sorted(spelled, key=len, reverse=True), letters, strict=False))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _replaced(value: Any, stand_ins: dict[str, str]) -> Any:
    if not stand_ins:
        return value
    if isinstance(value, str):
        for name, letter in stand_ins.items():
            value = value.replace(name, letter)
        return value
    if isinstance(value, dict):
        return {name: _replaced(item, stand_ins) for name, item in value.items()}
    return [_replaced(item, stand_ins) for item in value] if isinstance(value, list) else value


def _plain_apart(parts: Iterator[Row], names: dict[str, str]) -> Iterator[Row]:
    """Each stand-in a part of its own, as what it stands for."""
    for part in parts:
        texts = re.split(f"([{''.join(names)}])", part["text"]) if names else [part["text"]]
        for text in filter(None, texts):
            yield {**part, "text": names.get(text, text), "plain": text in names}
