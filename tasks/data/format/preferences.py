"""Make an example of a row of format.task preference: a prompt with its chosen and with its rejected answer.

Answers are texts or messages. Rows whose answers are equal are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.chat import Example, RowExamples, sections, templated
from trnflow.tasks.data.format.conversation import Conversation, Row, messages_of, parsed
from trnflow.tasks.data.format.spelled_tokens import special_pattern
from trnflow.tasks.data.format.templates import ChatTemplate
from trnflow.tasks.data.texts import prompt_and_answer
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.preference import CHOSEN, PROMPT, REJECTED

if TYPE_CHECKING:
    from trnflow.tasks.metadata import RowsMeta

TIED = "tied"
"""The note of a row whose answers are equal."""

Answer = Callable[[Row, str], tuple[Any, Any, Any]]
"""(row, its name in errors) -> prompt, chosen, rejected."""


def pair_maker(
    meta: RowsMeta, chat: Meta | None, templates: dict[str, ChatTemplate]
) -> Callable[[Row, str], RowExamples]:
    """Return the function that makes {"parts", "rejected"} of a row. Raises DataError for a prompt that begins one answer
    alone.

    chat: as `chat_document`; templates: as `chat_templates_of`, {} for plain headings.
    """
    read, write = reader_and_writer(meta.get("nested", ()), chat, templates)

    def make(row: Row, where: str) -> RowExamples:
        prompt, *answers = read(row, where)
        if answers[0] == answers[1]:
            return RowExamples([], (TIED,))
        written = [write(prompt, answer, where) for answer in answers]
        if not all(any(part["train"] and part["text"].strip() for part in parts) for parts in written):
            return RowExamples([])
        return RowExamples([{"parts": written[0], REJECTED: written[1]}])

    return make


def reader_and_writer(
    nested: Collection[str], chat: Meta | None, templates: dict[str, ChatTemplate]
) -> tuple[Answer, Callable[..., Example]]:
    """Return the function that splits a row, and the one that writes a prompt and an answer as parts.

    nested: columns of lists or objects; others: as of `pair_maker`."""
    return (_messages(nested), _written(chat, templates)) if CHOSEN in nested else (_texts, _plain)


def _texts(row: Row, where: str) -> tuple[str | int, str, str]:
    """Return prompt and answers; without a prompt the number of characters that the answers share."""
    prompt, chosen, rejected = (row.get(name) or "" for name in (PROMPT, CHOSEN, REJECTED))
    if not prompt:
        same = next((at for at, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), 0)
        # the blank before the first word that differs belongs to the answers
        same -= same > 0 and chosen[same - 1] == " "
        return same, chosen, rejected
    begins = [prompt == answer[: len(prompt)] for answer in (chosen, rejected)]
    if any(begins):
        _refuse_one(begins, where)
        return prompt, chosen[len(prompt) :], rejected[len(prompt) :]
    return prompt, chosen, rejected


def _plain(prompt: str | int, answer: str, where: str) -> Example:
    if isinstance(prompt, int):  # it may end within a word, and no program sends it
        return [{"text": answer[:prompt], "train": False}, {"text": answer[prompt:], "train": True}]
    return prompt_and_answer(prompt, answer)


def _messages(nested: Any) -> Answer:
    def read(row: Row, where: str) -> tuple[list[Row], list[Row], list[Row]]:
        chosen, rejected = (_conversation(row, name, where) for name in (CHOSEN, REJECTED))
        given = _conversation(row, PROMPT, where) if PROMPT in nested else []
        whole = [answer[0]["role"] != "assistant" for answer in (chosen, rejected) if answer]
        if not any(whole):
            text = row.get(PROMPT)
            prompt = given or ([{"role": "user", "content": text}] if text else [])
            if not prompt:
                raise DataError(f"{where}: there is no prompt before the answers", f"give a column {PROMPT}")
            return prompt, chosen, rejected
        same = next((at for at, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
        same = min(len(chosen), len(rejected)) - 1 if same is None else same
        prompt = given or chosen[:same]
        if not given and isinstance(text := row.get(PROMPT), str) and text:
            prompt = prompt if prompt and prompt[-1].get("content") == text else [{"content": text}]
        _refuse_one([prompt == answer[: len(prompt)] for answer in (chosen, rejected)], where)
        return prompt, chosen[len(prompt) :], rejected[len(prompt) :]

    return read


def _conversation(row: Row, name: str, where: str) -> list[Row]:
    """Return a column's messages; a single message is a conversation of one."""
    value = parsed(row, name, where)
    return messages_of([value] if isinstance(value, dict) else value, f"{where}: {name}")


def _refuse_one(begins: list[bool], where: str) -> None:
    """Raise DataError unless the prompt begins both answers. begins: of chosen and rejected."""
    for name, holds in zip((CHOSEN, REJECTED), begins, strict=True):
        if not holds:
            raise DataError(
                f"{where}: {name} does not begin with the row's prompt, as whole conversations do",
                f"repair the row, or give answers alone in {CHOSEN} and {REJECTED}",
            )


def _written(chat: Meta | None, templates: dict[str, ChatTemplate]) -> Callable[..., Example]:
    special = special_pattern(tuple(chat["texts"])) if chat else None

    def write(prompt: list[Row], answer: list[Row], where: str) -> Example:
        if len(answer) != 1 or answer[0]["role"] != "assistant":
            what = (
                f"{len(answer)} messages after the prompt" if len(answer) != 1 else f"a message of {answer[0]['role']}"
            )
            raise DataError(f"{where}: an answer has {what}", "give one message of the assistant after the prompt")
        given = Conversation([*prompt, *answer])
        if not templates:
            return sections(given.messages, where, last=True)
        examples: list[Example] = templated(given, templates["template"], where, last=True, special=special).examples
        return examples[0]

    return write
