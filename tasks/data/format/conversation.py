"""Read a conversation from a row: messages in OpenAI's or ShareGPT's shape, tools, documents, template variables."""

from __future__ import annotations

from typing import Any, NamedTuple

from trnflow.tasks.data.format.sections_template import ROLES
from trnflow.tasks.data.format.templates import RESERVED
from trnflow.tasks.errors import DataError
from trnflow.tasks.system.json_numbers import loads

Row = dict[str, Any]

SHAREGPT = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "bing": "assistant",
    "function_call": "assistant", "function": "tool", "observation": "tool",
}  # fmt: skip
THINKING = ("reasoning_content", "thinking", "reasoning")
"""Fields that may hold thinking: most templates read the first, gpt-oss's the second."""

REPAIR = "repair the row; `format.tools=null` and `format.documents=null` leave these columns alone"


class Conversation(NamedTuple):
    """A row's input to a chat template. arguments: further variables."""

    messages: list[Row]
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    arguments: Row = {}


class ChatColumns(NamedTuple):
    """The columns of a conversation, its tools, documents and template variables; None if not used."""

    messages: str
    tools: str | None = None
    documents: str | None = None
    arguments: str | None = None


def conversation_of(row: Row, columns: ChatColumns, where: str) -> Conversation:
    """Read the conversation in a row, from objects or JSON text. Raises DataError for broken JSON or wrong types."""
    given = {name: parsed(row, column, where) for name, column in columns._asdict().items()}
    arguments = given["arguments"] or {}
    for name in ("tools", "documents"):
        entries = given[name]
        if entries is not None and not (
            isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
        ):
            raise DataError(f"{where}: the column {getattr(columns, name)} is no list of objects", REPAIR)
    if not isinstance(arguments, dict) or {*arguments} & {*RESERVED}:
        raise DataError(
            f"{where}: the column {columns.arguments} must be an object without {', '.join(RESERVED)}", REPAIR
        )
    return Conversation(messages_of(given["messages"], where), given["tools"], given["documents"], arguments)


def parsed(row: Row, column: str | None, where: str) -> Any:
    """Return a column's value, text parsed as JSON; None if missing or blank. Raises DataError."""
    value = row.get(column) if column else None
    if not isinstance(value, str):
        return value
    try:
        return loads(value) if value.strip() else None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: the column {column} is no JSON: {error}", REPAIR) from error


def messages_of(value: Any, where: str) -> list[Row]:
    """Return messages as dicts with `role` and `content`, from OpenAI's or ShareGPT's shape. Raises DataError."""
    if value is not None and not isinstance(value, list):
        raise DataError(f"{where}: the messages are {str(value)[:60]!r}", "give a list of messages")
    return [_message(entry, f"{where}: message {number}") for number, entry in enumerate(value or [], 1)]


def _message(entry: Any, where: str) -> Row:
    if not isinstance(entry, dict):
        raise DataError(f"{where} is {str(entry)[:60]!r}", "give role and content")
    given = {name: value for name, value in entry.items() if value is not None}  # as transformers does
    ours = {theirs: name for theirs, name in (("from", "role"), ("value", "content")) if name not in given}
    given = {ours.get(name, name): value for name, value in given.items()}
    role = SHAREGPT.get(str(given.get("role")), given.get("role"))
    if role not in ROLES:
        raise DataError(f"{where} has the role {role!r}", f"give role (one of {', '.join(ROLES)}) and content")
    thinking = next((given[name] for name in THINKING if name in given), None)
    aliases = {} if thinking is None else {"thinking": thinking, **given, "reasoning_content": thinking}
    return {**(aliases or given), "role": role}
