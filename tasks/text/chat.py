"""Conversations to the parts of a text, trained on in the assistant's turns alone.

A turn's text is found by rendering: what the template adds for the assistant's message to the prompt that stands before it
at inference. So the mask is the model's own view, end-of-turn token included, whatever the template looks like.
Fails with DataError naming row and message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tasks.errors import ConfigError, DataError

Row = dict[str, Any]
Render = Callable[[list[Row], bool], str]

ROLES = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
SHAREGPT = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "bing": "assistant",
    "function_call": "assistant", "function": "tool", "observation": "tool",
}  # fmt: skip


def messages_of(value: Any, where: str) -> list[Row]:
    """OpenAI's `role` and `content`, or ShareGPT's `from` and `value` -> `role`, `content` and whatever else is set."""
    return [_message(item, f"{where}: message {number}") for number, item in enumerate(value or [], 1)]


def templated(messages: list[Row], render: Render, where: str, *, last: bool) -> list[Row]:
    """Parts `text`, `train` through a chat template. last: train on the assistant's last turn alone."""
    from jinja2 import TemplateError

    try:
        whole = render(messages, False)
        spans = [_span(messages, index, whole, render, where) for index in _trained(messages, last)]
    except (TemplateError, TypeError, ValueError) as error:
        raise DataError(
            f"{where}: the chat template refuses the messages: {error}",
            "repair the row, or set format.chat_template to a template that takes it (`sections` takes any)",
        ) from error
    return list(_cut(whole, spans))


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
