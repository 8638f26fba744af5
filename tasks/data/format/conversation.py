"""Read a conversation from a row: messages in OpenAI's or ShareGPT's shape, a system prompt, tools, documents, template
variables."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from trnflow.tasks.data.format.fitting import CALL, DEVELOPER
from trnflow.tasks.data.format.sections_template import ROLES
from trnflow.tasks.data.format.templates import RESERVED
from trnflow.tasks.errors import DataError
from trnflow.tasks.system.json_numbers import loads

Row = dict[str, Any]

SHAREGPT = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "bing": "assistant",
    CALL: "assistant", "tool_call": "assistant", "function": "tool", "observation": "tool", "tool_response": "tool",
}  # fmt: skip

REPAIR = "repair the row; `format.tools=null` and `format.documents=null` leave these columns alone"


class Conversation(NamedTuple):
    """A row's input to a chat template. arguments: further variables."""

    messages: list[Row]
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    arguments: Row = {}


class ChatColumns(NamedTuple):
    """The columns of a conversation, its tools, documents, template variables and system prompt; None if not used."""

    messages: str
    tools: str | None = None
    documents: str | None = None
    arguments: str | None = None
    system: str | None = None


def conversation_of(row: Row, columns: ChatColumns, where: str) -> Conversation:
    """Read the conversation in a row, from objects or JSON text. Raises DataError for broken JSON or wrong types."""
    messages = messages_of(parsed(row, columns.messages, where), where)
    return given_around(row, columns, where, [*system_of(row, columns.system, messages, where), *messages])


def given_around(row: Row, columns: ChatColumns, where: str, messages: list[Row]) -> Conversation:
    """Return messages with what a row's other columns give a chat template. Raises DataError."""
    tools, documents, arguments = (
        parsed(row, column, where) for column in (columns.tools, columns.documents, columns.arguments)
    )
    for column, entries in ((columns.tools, tools), (columns.documents, documents)):
        if entries is not None and not (
            isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
        ):
            raise DataError(f"{where}: the column {column} is no list of objects", REPAIR)
    arguments = arguments or {}
    if not isinstance(arguments, dict) or {*arguments} & {*RESERVED}:
        raise DataError(
            f"{where}: the column {columns.arguments} must be an object without {', '.join(RESERVED)}", REPAIR
        )
    # no tools are no tools to templates that ask whether the list is there
    return Conversation(messages, [*map(_tool, tools)] if tools else None, documents, arguments)


def system_of(row: Row, column: str | None, messages: list[Row], where: str) -> list[Row]:
    """Return a row's system prompt as a message, [] without one. Raises DataError where the conversation begins with
    another."""
    prompt = row.get(column) if column else None
    if prompt is None or not str(prompt).strip():
        return []
    first = messages[0] if messages else {}
    if first.get("role") not in ("system", DEVELOPER):
        return [{"role": "system", "content": prompt}]
    if first.get("content") != prompt:
        raise DataError(
            f"{where}: the column {column} and the first message are different system prompts",
            "keep one of them; format.system=null leaves the column alone",
        )
    return []


def _tool(tool: Row) -> Row:
    """Return a tool in OpenAI's shape, also of LLaMA-Factory's bare function, and of axolotl's JSON text of parameters."""
    if "name" in tool and not {"function", "type"} & tool.keys():
        tool = {"type": "function", "function": tool}
    function = tool.get("function")
    if isinstance(function, dict) and isinstance(function.get("parameters"), str):
        with suppress(ValueError):
            tool = {**tool, "function": {**function, "parameters": loads(function["parameters"])}}
    return tool


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
    if given["role"] in (CALL, "tool_call"):
        given[CALL] = given.pop("content", None)
    return {**given, "role": role}
