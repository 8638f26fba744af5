"""Make an example of a row of format.task preference: a prompt with its chosen and with its rejected answer.

Answers are texts or messages. Rows whose answers are equal are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.chat import UNTAUGHT, RowExamples, written_by
from trnflow.tasks.data.format.conversation import ChatColumns, Row, given_around, messages_of, parsed, system_of
from trnflow.tasks.data.format.spelled_tokens import special_pattern
from trnflow.tasks.data.format.templates import ChatTemplate
from trnflow.tasks.data.format.training_fields import FIELDS
from trnflow.tasks.data.texts import prompt_and_answer, text_of
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.preference import CHOSEN, PROMPT, REJECTED

if TYPE_CHECKING:
    from trnflow.tasks.metadata import RowsMeta

TIED = "tied"
"""The note of a row whose answers are equal."""

SCORES = (
    ("score_chosen", "score_rejected"),
    ("chosen_score", "rejected_score"),
    ("chosen_rating", "rejected_rating"),
    ("rating_chosen", "rating_rejected"),
    ("chosen-rating", "rejected-rating"),
)
"""Columns with what answers are worth, as UltraFeedback and others have them: nothing else reads them."""
EXCHANGED = "exchanged"
"""The note of a row whose rejected answer has the higher score."""

Answer = Callable[[Row, str], tuple[Any, Any, Any]]
"""(row, its name in errors) -> prompt, chosen, rejected."""
Write = Callable[[Row, Any, Any, str], RowExamples]
"""(row, prompt, answer, the row's name) -> one example, parts."""


def pair_maker(
    meta: RowsMeta, columns: ChatColumns, chat: Meta | None, templates: dict[str, ChatTemplate]
) -> Callable[[Row, str], RowExamples]:
    """Return the function that makes {"parts", "rejected"} of a row. Raises DataError for a prompt that begins one answer
    alone.

    columns: of a row's tools and others; chat: as `chat_document`; templates: as `chat_templates_of`, {} for plain headings.
    """
    read, write = reader_and_writer(meta.get("nested", ()), columns, chat, templates)
    scores = next((pair for pair in SCORES if {*pair} <= {*meta["columns"]}), None)

    def make(row: Row, where: str) -> RowExamples:
        prompt, *answers = read(row, where)
        if answers[0] == answers[1]:
            return RowExamples([], {TIED: ""})
        written = [write(row, prompt, answer, where) for answer in answers]
        if not all(map(teaches, written)):
            return RowExamples([])
        examples = [{"parts": written[0].examples[0], REJECTED: written[1].examples[0]}]
        exchanged = {EXCHANGED: ""} if scores and _is_lower(*(row[name] for name in scores)) else {}
        return RowExamples(examples, {**written[0].notes, **written[1].notes, **exchanged})

    return make


def _is_lower(score: Any, other: Any) -> bool:
    """Return whether a score is a number below another."""
    return isinstance(score, int | float) and isinstance(other, int | float) and score < other


def teaches(written: RowExamples) -> bool:
    """Return whether the one example has text to train on."""
    return any(part["train"] and part["text"].strip() for part in written.examples[0])


def reader_and_writer(
    nested: Collection[str], columns: ChatColumns, chat: Meta | None, templates: dict[str, ChatTemplate]
) -> tuple[Answer, Write]:
    """Return the function that splits a row, and the one that writes a prompt and an answer; arguments as of `pair_maker`."""
    return (_messages(nested), _written(columns, chat, templates)) if CHOSEN in nested else (_texts, _plain)


def _texts(row: Row, where: str) -> tuple[str | int, str, str]:
    """Return prompt and answers; without a prompt the number of characters that the answers share."""
    prompt, chosen, rejected = (text_of(row.get(name)) for name in (PROMPT, CHOSEN, REJECTED))
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


def _plain(row: Row, prompt: str | int, answer: str, where: str) -> RowExamples:
    if isinstance(prompt, int):  # it may end within a word, and no program sends it
        return RowExamples([[{"text": answer[:prompt], "train": False}, {"text": answer[prompt:], "train": True}]])
    return RowExamples([prompt_and_answer(prompt, answer)])


def _messages(nested: Any) -> Answer:
    def read(row: Row, where: str) -> tuple[list[Row], list[Row], list[Row]]:
        chosen, rejected = (_conversation(row, name, where) for name in (CHOSEN, REJECTED))
        given = _conversation(row, PROMPT, where) if PROMPT in nested else []
        whole = [answer[0]["role"] != "assistant" for answer in (chosen, rejected) if answer]
        if not any(whole):
            text = text_of(row.get(PROMPT))
            prompt = given or ([{"role": "user", "content": text}] if text else [])
            if not prompt:
                raise DataError(f"{where}: there is no prompt before the answers", f"give a column {PROMPT}")
            return prompt, chosen, rejected
        said = zip(_said(chosen), _said(rejected), strict=False)
        same = next((at for at, (a, b) in enumerate(said) if a != b), None)
        same = min(len(chosen), len(rejected)) - 1 if same is None else same
        prompt = given or chosen[:same]
        if not given and (text := text_of(row.get(PROMPT))):
            prompt = prompt if prompt and prompt[-1].get("content") == text else [{"content": text}]
        _refuse_one([_said(prompt) == _said(answer[: len(prompt)]) for answer in (chosen, rejected)], where)
        return prompt, chosen[len(prompt) :], rejected[len(prompt) :]

    return read


def _conversation(row: Row, name: str, where: str) -> list[Row]:
    """Return a column's messages; a single message is a conversation of one."""
    value = parsed(row, name, where)
    return messages_of([value] if isinstance(value, dict) else value, f"{where}: {name}")


def _said(messages: list[Row]) -> list[Row]:
    """Return messages without the fields that say what is trained on."""
    return [{name: value for name, value in message.items() if name not in FIELDS} for message in messages]


def _refuse_one(begins: list[bool], where: str) -> None:
    """Raise DataError unless the prompt begins both answers. begins: of chosen and rejected."""
    for name, holds in zip((CHOSEN, REJECTED), begins, strict=True):
        if not holds:
            raise DataError(
                f"{where}: {name} does not begin with the row's prompt, as whole conversations do",
                f"repair the row, or give answers alone in {CHOSEN} and {REJECTED}",
            )


def _written(columns: ChatColumns, chat: Meta | None, templates: dict[str, ChatTemplate]) -> Write:
    special = special_pattern(tuple(chat["texts"])) if chat else None

    def write(row: Row, prompt: list[Row], answer: list[Row], where: str) -> RowExamples:
        if len(answer) != 1 or answer[0]["role"] != "assistant":
            what = (
                f"{len(answer)} messages after the prompt" if len(answer) != 1 else f"a message of {answer[0]['role']}"
            )
            raise DataError(f"{where}: an answer has {what}", "give one message of the assistant after the prompt")
        system = system_of(row, columns.system, prompt, where)
        given = given_around(row, columns, where, [*system, *prompt, *answer])
        written = written_by(templates, given, where, last=True, special=special)
        if UNTAUGHT in written.notes:
            raise DataError(f"{where}: an answer is marked as not to be trained on", "leave the pair or the mark out")
        return written

    return write
