"""Give a message the shape that a chat template takes: parts or text, calls of tools, arguments, the developer's role."""

from __future__ import annotations

import json
from typing import Any

from trnflow.tasks.data.format.templates import ChatTemplate
from trnflow.tasks.data.format.training_fields import FIELDS, TEXT_NAMES, THINKING, flag_of, is_plain, text_of
from trnflow.tasks.errors import DataError
from trnflow.tasks.system.json_numbers import loads

Row = dict[str, Any]

TEXTS = ("text", "input_text", "output_text", "refusal", "thinking")
"""Types of parts that are texts, as vLLM reads them."""
CALL, CALLS = "function_call", "tool_calls"
"""The call of a message: OpenAI's older field, an object; and what ShareGPT's role of this name says, JSON text."""
DEVELOPER = "developer"

WHOLE_TEXT = "give the texts alone, or leave the row out"


def fitted(message: Row, template: ChatTemplate | None, where: str) -> Row:
    """Return a message without the fields that say what is trained on. template: None for plain headings.

    Raises DataError for a part that is no text, and for a call that can't be read.
    """
    if is_plain(message) and message["role"] != DEVELOPER:
        return message
    given = {name: value for name, value in message.items() if name not in FIELDS}
    if given["role"] == DEVELOPER and not (template and DEVELOPER in template.texts):
        given["role"] = "system"
    _move_refusal(given, where)
    for name in THINKING:
        if isinstance(given.get(name), list):
            given[name] = "".join(map(text_of, given[name]))
    if isinstance(content := given.get("content"), list):
        takes_parts = template is not None and template.goes_through_parts and given["role"] != "tool"
        given |= _unpacked(content, where, takes_parts=takes_parts)
    elif isinstance(content, dict) and given["role"] != "tool":
        raise DataError(f"{where}: the content is an object", "give a text, or a list of parts")
    if (call := given.pop(CALL, None)) is not None:
        given |= _called(call, template, where)
    if CALLS in given:
        given[CALLS] = [_fitted_call(call, template, where) for call in _list(given[CALLS], where)]
    if not given.get(CALLS):
        given.pop(CALLS, None)  # templates ask whether it is there
    thinking = next((given[name] for name in THINKING if name in given), None)
    return given if thinking is None else {"thinking": thinking, **given, "reasoning_content": thinking}


def joins_lines(message: Row) -> bool:
    """Return whether a message's content is several texts that are joined by line breaks where a template takes no parts."""
    content = message.get("content")
    return isinstance(content, list) and len(content) > 1 and _separator(content) == "\n"


def _move_refusal(given: Row, where: str) -> None:
    """Take OpenAI's `refusal`, which stands in the place of a content, for the content, in place."""
    if given.get("audio"):
        raise DataError(f"{where} has audio, which is no text", WHOLE_TEXT)
    if refusal := given.pop("refusal", None):
        if given.get("content"):
            raise DataError(f"{where} has a content and a refusal", "leave one out")
        given["content"] = refusal


def _unpacked(parts: list[Any], where: str, *, takes_parts: bool) -> Row:
    """Return `content` of parts, with LLaMA-Factory's `reasoning` and `tool_call` parts as fields."""
    texts: list[Row] = []
    fields: Row = {}
    for number, part in enumerate(parts, 1):
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if kind == "reasoning":
            fields["reasoning_content"] = fields.get("reasoning_content", "") + text_of(part)
        elif kind == "tool_call":
            fields.setdefault(CALLS, []).extend(_calls_of(text_of(part), where))
        elif kind in TEXTS and (isinstance(part, str) or any(isinstance(part.get(name), str) for name in TEXT_NAMES)):
            texts.append(_text_part(part))
        else:
            raise DataError(f"{where}: part {number} of the content is no text ({kind})", WHOLE_TEXT)
    joined = _separator(parts).join(part["text"] for part in texts if part["text"])
    return {"content": texts if takes_parts else joined, **fields}


def _text_part(part: Any) -> Row:
    more = part if isinstance(part, dict) else {}
    ours = ("type", *TEXT_NAMES, *FIELDS)
    return {"type": "text", "text": text_of(part), **{name: more[name] for name in more if name not in ours}}


def _separator(parts: list[Any]) -> str:
    """Return what joins the texts of parts."""
    # vLLM puts lines between them; LLaMA-Factory (`value`) and axolotl (parts that say what is trained on) nothing
    given = [part for part in parts if isinstance(part, dict)]
    end_to_end = any("value" in part or "content" in part or flag_of(part, "") is not None for part in given)
    return "" if end_to_end else "\n"


def _called(call: Any, template: ChatTemplate | None, where: str) -> Row:
    """Return a call as `tool_calls`; one that is text as `content` for a template that writes no calls."""
    if isinstance(call, str) and not (template and template.writes_calls):
        return {"content": call}
    return {CALLS: _calls_of(call, where)}


def _calls_of(call: Any, where: str) -> list[Row]:
    """Read one or several {name, arguments}, also from JSON text."""
    calls = _parsed(call, where) if isinstance(call, str) else call
    calls = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in calls):
        raise DataError(f"{where} calls {call!r:.60}, which is no call of a tool", "give name and arguments")
    return [{"type": "function", "function": each} for each in calls]


def _list(calls: Any, where: str) -> list[Any]:
    calls = _parsed(calls, where) if isinstance(calls, str) else calls
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise DataError(f"{where}: {CALLS} is {calls!r:.60}", "give a list of objects")
    return calls


def _fitted_call(call: Row, template: ChatTemplate | None, where: str) -> Row:
    """Return a call with its arguments as the template takes them: an object, for some JSON text."""
    function = call.get("function", call)
    if not isinstance(function, dict) or "arguments" not in function:
        return call
    arguments, as_text = function["arguments"], template is not None and template.takes_text_arguments
    if isinstance(arguments, str) and not as_text:
        arguments = _parsed(arguments, where) if arguments.strip() else {}
        if not isinstance(arguments, dict):
            raise DataError(f"{where}: the arguments of a call are {arguments!r:.60}", "give an object")
    elif isinstance(arguments, dict) and as_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    fitted_function = {**function, "arguments": {} if arguments is None else arguments}
    return {**call, "function": fitted_function} if "function" in call else fitted_function


def _parsed(text: str, where: str) -> Any:
    try:
        return loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} calls {text[:60]!r}, which is no JSON: {error}", "repair the row") from error
