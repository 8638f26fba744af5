"""Compare what a template wrote with what the messages say: what it left out, and what it added by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trnflow.tasks.data.format.training_fields import THINKING
from trnflow.tasks.errors import DataError

Row = dict[str, Any]

# names of roles and marks of turns, such as `<|im_start|>user`, `### User` or `[INST]`
_MARKS = re.compile(r"<[^<>]*>|\[/?[A-Z_]+\]|\b(system|user|human|role|instruction|question)\b|[\W_]", re.IGNORECASE)
EDGE = 24
"""Most letters at the beginning and at the end of a text, of which a template that writes it writes one or the other."""
OWN_TEMPLATE = (
    "set format.chat_template to a template that writes it (the tokenizer's own, without the part that cuts it)"
)


def check_answer(message: Row, text: str, where: str, *, thinking: bool = True) -> None:
    """Raise DataError when `text` lacks a message's thinking (with `thinking`) or a call of a tool."""
    lost = ["thinking"] if thinking and thinking_of(message) not in text else []
    lost += ["a tool call"] if any(name not in text for name in _called(message)) else []
    if lost:
        raise DataError(f"{where} has {lost[0]}, and the chat template leaves it out", OWN_TEMPLATE)


def check_content(message: Row, text: str, where: str) -> bool:
    """Return whether `text`, without its blanks, has what a message says as it is. Raises DataError when it lacks all of it, or
    has an object as Python writes it.

    A template may take something off a text, as SmolLM3's takes `/no_think`.
    """
    content, role, whole = message.get("content"), message["role"], True
    for each in [part["text"] for part in content] if isinstance(content, list) else [content]:
        said = letters(each.rpartition("</think>")[2]) if isinstance(each, str) and role != "tool" else ""
        whole = whole and said in text
        edge = min(EDGE, (len(said) + 1) // 2)
        if said[:edge] not in text and said[-edge:] not in text:
            raise DataError(
                f"{where} ({role}), {str(each).strip()[:40]!r}, is missing in the text that the chat template writes",
                "set format.chat_template to a template that writes it (`sections` writes all)",
            )
        if isinstance(each, dict) and letters(str(each)) in text:
            raise DataError(f"{where}: the chat template writes its object as Python does", "give a text")
    return whole


def letters(text: str) -> str:
    """Return a text without its blanks."""
    return "".join(text.split())


def thinking_of(message: Row) -> str:
    """Return a message's thinking, from THINKING's fields or `<think>`, or ""."""
    content = message.get("content")
    thinking = next((message[name] for name in THINKING if isinstance(message.get(name), str)), "")
    if not thinking and isinstance(content, str) and "</think>" in content:
        thinking = content.split("</think>")[0].split("<think>")[-1]
    return str(thinking).strip()


def _called(message: Row) -> Iterator[str]:
    """Yield the names of the functions that a message calls."""
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            yield function["name"]


def lacks_tools(tools: list[Any] | None, text: str) -> bool:
    """Return whether a text lacks the name of one of the tools."""
    named = [tool.get("function", tool) for tool in tools or () if isinstance(tool, dict)]
    return any(isinstance(tool, dict) and str(tool.get("name", "")) not in text for tool in named)


def added_before(text: str) -> str:
    """Return what a template wrote before a message, "" if these are only the marks of its turn."""
    return text if _MARKS.sub("", text) else ""
