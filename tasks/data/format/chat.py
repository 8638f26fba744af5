"""Turn conversations into training texts through a chat template, as parts with a flag whether they are trained on.

Only the assistant's messages are trained on: the text in `{% generation %}` blocks if the template has them, else what
the template adds when a message is appended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

from trnflow.tasks.data.format.conversation import ROLES, THINKING, Conversation, Row
from trnflow.tasks.data.format.spelled_tokens import replace_spelled, split_spelled, stand_ins_for
from trnflow.tasks.data.format.templates import ChatTemplate, rendering
from trnflow.tasks.errors import ConfigError, DataError

Example = list[Row]
"""Parts of a text: dicts with `text`, `train`, and optionally `plain` and `ends_prompt`: a program sends the text up to the
part's end as a prompt."""

REWRITTEN = "rewritten"
OUTSIDE = "outside"
UNLIKE_PROMPT = "unlike_prompt"
"""Notes about a row: earlier turns rewritten; more assistant turns than `{% generation %}` blocks; the prompt at
inference ends in words that the training text lacks."""


class RowExamples(NamedTuple):
    """Examples made from a row (parts, or dicts with `text` and `label` or `parts`), and notes."""

    examples: list[Any]
    notes: tuple[str, ...] = ()


class Turn(NamedTuple):
    """An assistant's answer. through: the text to its end; start: its index there; unlike_prompt: at inference."""

    through: str
    start: int
    unlike_prompt: bool

    @property
    def span(self) -> tuple[int, int]:
        return self.start, len(self.through)

    @property
    def prompts(self) -> list[int]:
        """Where a prompt ends in the text."""
        return [] if self.unlike_prompt else [self.start]


def templated(
    given: Conversation, template: ChatTemplate, where: str, *, last: bool, special: re.Pattern[str] | None = None
) -> RowExamples:
    """Render a conversation into examples; none if the assistant says nothing. Raises DataError or ConfigError.

    last: train on the last turn alone. special: `special_pattern`, whose matches become parts marked `plain`.
    """
    if not _trained(given.messages, last):
        return RowExamples([])
    fix = "repair the row, or set format.chat_template to a template that takes it (`sections` takes any)"
    with rendering(where, "the chat template refuses the messages", fix):
        spelled = stand_ins_for(given, special)
        writing = _Writing(replace_spelled(given, spelled), template, where)
        examples_of_row = writing.by_blocks(last) if template.generation else writing.by_turns(last)
    names = {letter: name for name, letter in spelled.items()}
    return examples_of_row._replace(
        examples=[list(split_spelled(example, names)) for example in examples_of_row.examples]
    )


def sections(messages: list[Row], where: str, *, last: bool) -> Example:
    """Write a conversation under headings such as `### User`. Raises DataError for content that is no text or lost."""
    trained, parts = _trained(messages, last), []
    for number, message in enumerate(messages):
        before, content = "\n\n" if number else "", message.get("content") or ""
        if not isinstance(content, str):
            raise DataError(f"{where}: message {number + 1} is no text", "set format.chat_template to a Jinja template")
        if number in trained:
            _check_written(message, content, f"{where}: message {number + 1}")
        heading = f"{before}### {ROLES[message['role']]}\n"
        parts.append({"text": heading, "train": False, "ends_prompt": number in trained})
        parts.append({"text": content, "train": number in trained})
    return parts


def prompted(
    given: Conversation, template: ChatTemplate, where: str, special: re.Pattern[str] | None = None
) -> Example:
    """Render a conversation up to the assistant's next answer. Raises DataError for one that the template refuses."""
    with rendering(where, "the chat template refuses the messages", "repair the row"):
        spelled = stand_ins_for(given, special)
        writing = _Writing(replace_spelled(given, spelled), template, where)
        text = writing._text(add_generation_prompt=True)
    names = {letter: name for name, letter in spelled.items()}
    return list(split_spelled([{"text": text, "train": False}], names))


class _Writing(NamedTuple):
    """A conversation with spelled tokens replaced by private characters, and its template."""

    given: Conversation
    template: ChatTemplate
    where: str

    def by_turns(self, last: bool) -> RowExamples:
        """Make the examples without `{% generation %}` blocks."""
        whole = self._text()
        turns = [self._turn(index, whole) for index in _trained(self.given.messages, last)]
        notes = [UNLIKE_PROMPT] * any(turn.unlike_prompt for turn in turns)
        if all(whole.startswith(turn.through) for turn in turns):
            spans, ends = [turn.span for turn in turns], [end for turn in turns for end in turn.prompts]
            return RowExamples([list(_cut(whole, spans, ends))], tuple(notes))
        # the template rewrites earlier turns (Qwen3 leaves out their thinking), so each turn is an example
        examples = [list(_cut(turn.through, [turn.span], turn.prompts)) for turn in turns]
        return RowExamples(examples, tuple(notes if last else [*notes, REWRITTEN]))

    def by_blocks(self, last: bool) -> RowExamples:
        """Make the example with `{% generation %}` blocks; with `last` trained on those of the last turn."""
        marked, plain = _Marked.of(self._text(marked=True)), self._text()
        if marked.text != plain:
            raise ConfigError(
                f"format.chat_template: {self.where}: a filter works on the text of a {{% generation %}} block after the block "
                "(as `trim` of a macro that holds one), so where that text ends up can't be told",
                "move the filter into the block",
            )
        turns = _trained(self.given.messages, last=False)
        spans = marked.spans
        if last:
            before = self._text(turns[-1], marked=True)
            spans = spans[len(_Marked.of(before).spans) :]
        for index in turns:  # templates may leave out the thinking of earlier turns
            _check_written(self.given.messages[index], plain, self._names(index), thinking=index == turns[-1])
        notes = [OUTSIDE] * (len(turns) > len(marked.spans))
        asked = [self._prompt(index) for index in _trained(self.given.messages, last)]
        ends = [len(prompt) for prompt in asked if prompt is not None and plain.startswith(prompt)]
        # {where a prompt ends: where its first block begins, before that if the block holds the turn's heading}
        begins = {
            at: start for start, end in reversed(spans) if (at := max((e for e in ends if e < end), default=-1)) >= 0
        }
        has_others = len(begins) < min(len(asked), len(spans)) or any(start > at for at, start in begins.items())
        notes += [UNLIKE_PROMPT] * has_others
        return RowExamples([list(_cut(plain, spans, begins))], tuple(notes))

    def _turn(self, index: int, whole: str) -> Turn:
        """Return message number `index`, rendered as the end of a conversation."""
        prompt = self._text(index, add_generation_prompt=True)
        through = whole if index + 1 == len(self.given.messages) else self._text(index + 1)
        start = len(prompt)
        unlike = not through.startswith(prompt)
        if unlike:
            start = self._start(index, prompt, through)
        _check_written(self.given.messages[index], through[start:], self._names(index))
        return Turn(through, start, unlike)

    def _start(self, index: int, prompt: str, through: str) -> int:
        """Return where a turn begins in `through`."""
        before = self._text(index)
        if not (prompt.startswith(before) and through.startswith(before)):
            raise ConfigError(
                f"format.chat_template: {self._names(index)}: the text before it depends on what comes after it, "
                "so the assistant's turns can't be told apart",
                "set format.chat_template to a template that renders turn by turn",
            )
        # DeepSeek-R1's prompt ends in `<think>`, so it differs from the text before the turn
        start = next(
            (at for at, (left, right) in enumerate(zip(prompt, through, strict=False)) if left != right), len(through)
        )
        content = self.given.messages[index].get("content")
        place = through.find(content.strip(), len(before)) if isinstance(content, str) and content.strip() else -1
        return start if place < 0 else min(start, place)

    def _prompt(self, index: int) -> str | None:
        """Return the prompt of a turn; None if the template refuses the messages before it."""
        with suppress(Exception):
            return self._text(index, add_generation_prompt=True)
        return None

    def _text(self, until: int | None = None, *, add_generation_prompt: bool = False, marked: bool = False) -> str:
        messages, tools, documents, arguments = self.given
        given = {**arguments, "messages": messages[:until], "tools": tools, "documents": documents}
        return self.template.render(given, self.where, add_generation_prompt=add_generation_prompt, marked=marked)

    def _names(self, index: int) -> str:
        return f"{self.where}: message {index + 1}"


class _Marked(NamedTuple):
    """A rendered text without the marks around its blocks. spans: (start, end) of each outermost block."""

    text: str
    spans: list[tuple[int, int]]

    @classmethod
    def of(cls, text: str) -> _Marked:
        from trnflow.tasks.data.format.sandbox import BEGIN, MARKS

        pieces, spans, at, depth, start = [], [], 0, 0, 0
        for piece in re.split(f"([{''.join(MARKS)}])", text):
            if piece not in MARKS:
                pieces.append(piece)
                at += len(piece)
            elif piece == BEGIN:
                start = start if depth else at
                depth += 1
            else:
                depth -= 1
                if not depth:
                    spans.append((start, at))
        return cls("".join(pieces), spans)


def _trained(messages: list[Row], last: bool) -> list[int]:
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    return turns[-1:] if last else turns


def _check_written(message: Row, text: str, where: str, *, thinking: bool = True) -> None:
    """Raise DataError when `text` lacks a message's thinking (with `thinking`) or a tool call."""
    lost = ["thinking"] if thinking and _thinking(message) not in text else []
    lost += ["a tool call"] if any(name not in text for name in _called(message)) else []
    if lost:
        raise DataError(
            f"{where} has {lost[0]}, and the chat template leaves it out",
            "set format.chat_template to a template that writes it (the tokenizer's own, without the part that cuts it)",
        )


def _thinking(message: Row) -> str:
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


def _cut(whole: str, spans: list[tuple[int, int]], prompts: Iterable[int]) -> Iterator[Row]:
    """Yield the parts of a text. spans: what is trained on; prompts: where prompts end."""
    ends = {*prompts}
    edges = sorted({0, len(whole), *ends, *(edge for span in spans for edge in span)})
    for start, end in pairwise(edges):
        train = any(first <= start and end <= last for first, last in spans)
        yield {"text": whole[start:end], "train": train, "ends_prompt": end in ends}
