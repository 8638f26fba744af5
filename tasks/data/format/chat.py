"""Turn conversations into training texts through a chat template, as parts with a flag whether they are trained on.

Only the assistant's messages are trained on: the text in `{% generation %}` blocks if the template has them, else what
the template adds when a message is appended. Fields of messages can take turns, or pieces of them, out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

from trnflow.tasks.data.format.conversation import Conversation, Row
from trnflow.tasks.data.format.fitting import CALL, CALLS, fitted, joins_lines
from trnflow.tasks.data.format.held_out import Span, held_out, with_holes
from trnflow.tasks.data.format.read_fields import notes_of_fields, recorded
from trnflow.tasks.data.format.sections_template import ROLES
from trnflow.tasks.data.format.spelled_tokens import replace_in_pieces, replace_spelled, split_spelled, stand_ins_for
from trnflow.tasks.data.format.templates import ChatTemplate, rendering
from trnflow.tasks.data.format.training_fields import Training, training_of
from trnflow.tasks.data.format.written import (
    added_before,
    check_answer,
    check_content,
    lacks_tools,
    letters,
    thinking_of,
)
from trnflow.tasks.data.texts import HELD_OUT, TOKEN
from trnflow.tasks.errors import ConfigError, DataError

Example = list[Row]
"""Parts of a text: dicts with `text`, `train`, and optionally `held_out`, `plain`, `token`, and `ends_prompt`: a program sends
the text up to the part's end as a prompt."""

REWRITTEN = "rewritten"
OUTSIDE = "outside"
UNLIKE_PROMPT = "unlike_prompt"
UNTAUGHT = "untaught"
CHANGED = "changed"
FORGOTTEN = "forgotten"
WITHOUT_TOOLS = "without_tools"
LINES = "lines"
CALL_TEXT = "call_text"
OPENING = "opening"
ANSWER_OPENING = "answer_opening"
BLANK = "blank"
"""Notes about a row, which `row_counts.WARNINGS` and `row_counts.REMARKS` put into words."""


class RowExamples(NamedTuple):
    """Examples made from a row (parts, or dicts with `text` and `label` or `parts`), and {note: text that is shown with it}."""

    examples: list[Any]
    notes: Mapping[str, str] = {}


class Turn(NamedTuple):
    """An assistant's answer. through: the text to its end; start: its index there; out: what is not trained on; unlike_prompt:
    at inference."""

    through: str
    start: int
    out: list[Span]
    unlike_prompt: bool

    @property
    def span(self) -> Span:
        return self.start, len(self.through)

    @property
    def prompts(self) -> list[int]:
        """Where a prompt ends in the text."""
        return [] if self.unlike_prompt else [self.start]


def written_by(
    templates: Mapping[str, ChatTemplate],
    given: Conversation,
    where: str,
    *,
    last: bool,
    special: re.Pattern[str] | None = None,
) -> RowExamples:
    """Write a conversation: with tools by the template for them, if there is one; without templates by plain headings."""
    if not templates:
        return _by_sections(given, where, last=last)
    template = templates.get("tools" if given.tools is not None else "template", templates["template"])
    return templated(given, template, where, last=last, special=special)


def templated(
    given: Conversation, template: ChatTemplate, where: str, *, last: bool, special: re.Pattern[str] | None = None
) -> RowExamples:
    """Render a conversation into examples; none if the assistant says nothing. Raises DataError or ConfigError.

    last: train on the last turn alone. special: `special_pattern`, whose matches become parts marked `plain`.
    """
    training = [training_of(message, names_of(where, index)) for index, message in enumerate(given.messages)]
    turns = trained_turns(given.messages, training, last)
    if not turns:
        return RowExamples([], _untaught(given.messages))
    fix = "repair the row, or set format.chat_template to a template that takes it (`sections` takes any)"
    with rendering(where, "the chat template refuses the messages", fix):
        writing, names = _begun(given, training, template, where, special)
        examples, noted = writing.by_blocks(turns) if template.generation else writing.by_turns(turns, last)
        added = dict(writing.added(turns, examples))
    notes = dict.fromkeys([*noted, *_notes(given, template), *notes_of_fields(given.messages, writing.read)], "")
    return RowExamples([list(split_spelled(example, names)) for example in examples], {**notes, **added})


def _by_sections(given: Conversation, where: str, *, last: bool) -> RowExamples:
    parts = sections(given.messages, where, last=last)
    notes = [
        *([] if any(part["train"] for part in parts) else _untaught(given.messages)),
        *[FORGOTTEN] * any(map(thinking_of, given.messages)),
        *_notes(given, None),
        *notes_of_fields(given.messages, set()),
    ]
    return RowExamples([parts], dict.fromkeys(notes, ""))


def sections(messages: list[Row], where: str, *, last: bool) -> Example:
    """Write a conversation under headings such as `### User`, each answer with its end. Raises DataError for content that
    is no text or lost.

    `sections_template` writes the same text.
    """
    training = [training_of(message, names_of(where, index)) for index, message in enumerate(messages)]
    trained, parts = trained_turns(messages, training, last), [{"text": "", "train": False, TOKEN: "bos_token"}]
    for number, message in enumerate(messages):
        given = fitted(message, None, names_of(where, number))
        before, content = "\n\n" if number else "", given.get("content") or ""
        if not isinstance(content, str):
            raise DataError(f"{names_of(where, number)} is no text", "set format.chat_template to a Jinja template")
        check_answer(given, content, names_of(where, number), thinking=number in trained)
        heading = f"{before}### {ROLES[given['role']]}\n"
        parts.append({"text": heading, "train": False, "ends_prompt": number in trained})
        pieces = training[number].content or [(content, True)]
        taught = number in trained
        parts += [{"text": text, "train": taught and train, HELD_OUT: taught and not train} for text, train in pieces]
        if given["role"] == "assistant":
            parts.append({"text": "", "train": taught, TOKEN: "eos_token"})
    return parts


def prompted(
    given: Conversation, template: ChatTemplate, where: str, special: re.Pattern[str] | None = None
) -> Example:
    """Render a conversation up to the assistant's next answer. Raises DataError for one that the template refuses."""
    with rendering(where, "the chat template refuses the messages", "repair the row"):
        writing, names = _begun(given, [Training()] * len(given.messages), template, where, special)
        text = writing.text(add_generation_prompt=True)
    return list(split_spelled([{"text": text, "train": False}], names))


def names_of(where: str, index: int) -> str:
    return f"{where}: message {index + 1}"


def trained_turns(messages: list[Row], training: list[Training], last: bool) -> list[int]:
    """Return the indices of the turns to train on. training: what each message's fields say."""
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    return [index for index in (turns[-1:] if last else turns) if training[index].turn is not False]


def teaches_nothing(messages: list[Row], where: str, last: bool) -> bool:
    """Return whether one of the turns to train on has no text, thinking or call."""
    training = [training_of(message, names_of(where, index)) for index, message in enumerate(messages)]
    for message in (messages[turn] for turn in trained_turns(messages, training, last)):
        content = message.get("content")
        text = content.strip() if isinstance(content, str) else content
        others = (CALLS, CALL, "refusal", "thinking", "tool_plan")
        if not (text or thinking_of(message) or any(message.get(name) for name in others)):
            return True
    return False


def _untaught(messages: Iterable[Row]) -> dict[str, str]:
    return {UNTAUGHT: ""} if any(message["role"] == "assistant" for message in messages) else {}


def _begun(
    given: Conversation, training: list[Training], template: ChatTemplate, where: str, special: re.Pattern[str] | None
) -> tuple[_Writing, dict[str, str]]:
    """Return a conversation as the template takes it, with spelled tokens replaced; {character: the token it stands for}."""
    messages = [fitted(message, template, names_of(where, index)) for index, message in enumerate(given.messages)]
    given = given._replace(messages=messages)
    spelled = stand_ins_for(given, special)
    training = [_stood_in(each, message, spelled) for each, message in zip(training, messages, strict=True)]
    given, read = replace_spelled(given, spelled), set[str]()
    writing = _Writing(given, recorded(given.messages, read), training, template, where, read)
    return writing, {letter: name for name, letter in spelled.items()}


def _stood_in(training: Training, message: Row, spelled: dict[str, str]) -> Training:
    """Return what a message's fields say, with the spelled tokens of its texts replaced."""
    if not (spelled and training.is_said):
        return training
    content, thinking = training.content, training.thinking
    if content and isinstance(message.get("content"), list):  # a template that goes through parts gets them one by one
        content = [piece for each in content for piece in replace_in_pieces([each], spelled) or [each]]
    elif content:
        content = replace_in_pieces(content, spelled)
    return training._replace(content=content, thinking=thinking and replace_in_pieces(thinking, spelled))


def _notes(given: Conversation, template: ChatTemplate | None) -> Iterator[str]:
    """Yield notes on how the shape of messages was changed. template: None for plain headings."""
    if any(map(joins_lines, given.messages)) and not (template and template.goes_through_parts):
        yield LINES
    if any(isinstance(message.get(CALL), str) for message in given.messages) and not (
        template and template.writes_calls
    ):
        yield CALL_TEXT


class _Writing(NamedTuple):
    """A conversation as its template takes it, spelled tokens replaced by private characters.

    shown: the messages, to be rendered; training: what the fields of each message say; read: gets the names of the fields
    that the template reads.
    """

    given: Conversation
    shown: list[Row]
    training: list[Training]
    template: ChatTemplate
    where: str
    read: set[str]

    def by_turns(self, turns: list[int], last: bool) -> tuple[list[Example], list[str]]:
        """Make the examples without `{% generation %}` blocks. Returns examples and notes."""
        whole = self.text()
        rendered = [self._turn(index, whole) for index in turns]
        notes = self._check(whole)
        for index in {*self._assistants()} - {*turns}:
            check_answer(self.given.messages[index], whole, self.names(index), thinking=False)
        notes += [UNLIKE_PROMPT] * any(turn.unlike_prompt for turn in rendered)
        if all(whole.startswith(turn.through) for turn in rendered):
            spans, out = [turn.span for turn in rendered], [span for turn in rendered for span in turn.out]
            prompts = [end for turn in rendered for end in turn.prompts]
            return [list(_cut(whole, spans, out, prompts))], notes
        # the template rewrites earlier turns (Qwen3 leaves out their thinking), so each turn is an example
        examples = [list(_cut(turn.through, [turn.span], turn.out, turn.prompts)) for turn in rendered]
        return examples, (notes if last else [*notes, REWRITTEN])

    def by_blocks(self, turns: list[int]) -> tuple[list[Example], list[str]]:
        """Make the example with `{% generation %}` blocks; trained on those of the turns. Returns examples and notes."""
        marked, plain = _Marked.of(self.text(marked=True)), self.text()
        if marked.text != plain:
            raise ConfigError(
                f"format.chat_template: {self.where}: a filter works on the text of a {{% generation %}} block after the block "
                "(as `trim` of a macro that holds one), so where that text ends up can't be told",
                "move the filter into the block",
            )
        notes, assistants = self._check(plain), self._assistants()
        for index in assistants:  # templates may leave out the thinking of earlier turns
            is_last = index == assistants[-1]
            check_answer(self.given.messages[index], self._rest(index, plain), self.names(index), thinking=is_last)
        whole = turns == assistants
        spans = marked.spans if whole else [span for index in turns for span in self._blocks(index, marked.spans)]
        notes += [OUTSIDE] * (len(spans) < len(turns))
        out = [span for index in turns for span in self._held_out(index, plain)]
        begins = self._begins(turns, spans, plain)
        has_others = len(begins) < min(len(turns), len(spans)) or any(start > at for at, start in begins.items())
        return [list(_cut(plain, spans, out, begins))], notes + [UNLIKE_PROMPT] * has_others

    def _begins(self, turns: list[int], spans: list[Span], plain: str) -> dict[int, int]:
        """Return {where a prompt ends: where its first block begins, before that if the block holds the turn's heading}."""
        asked = [self._prompt(index) for index in turns]
        ends = [len(prompt) for prompt in asked if prompt is not None and plain.startswith(prompt)]
        found = ((max((at for at in ends if at < end), default=-1), start) for start, end in reversed(spans))
        return {at: start for at, start in found if at >= 0}

    def _assistants(self) -> list[int]:
        return [index for index, message in enumerate(self.given.messages) if message["role"] == "assistant"]

    def _blocks(self, index: int, spans: list[Span]) -> list[Span]:
        """Return the spans of the blocks that a turn adds. spans: of all blocks."""
        first, end = (len(_Marked.of(self.text(until, marked=True)).spans) for until in (index, index + 1))
        if index + 1 == len(self.given.messages):
            end = len(spans)
        return spans[first:end]

    def added(self, turns: list[int], examples: list[Example]) -> Iterator[tuple[str, str]]:
        """Yield notes on what the template wrote by itself, and the text."""
        first = self.given.messages[0]
        if first["role"] == "user" and not self.given.tools and (text := added_before(self.template.opening)):
            yield OPENING, text
        head = self.template.answer_opening
        trained = [part["text"] for example in examples for part in example if part["train"]]
        if (
            head.strip()
            and not thinking_of(self.given.messages[turns[-1]])
            and trained
            and trained[-1].startswith(head)
        ):
            yield ANSWER_OPENING, head

    def _check(self, whole: str) -> list[str]:
        """Raise DataError if the rendered conversation lacks another's message; return notes on what else it lacks."""
        written, assistants = letters(whole), self._assistants()
        others = [index for index in range(len(self.given.messages)) if index not in assistants]
        as_given = [check_content(self.given.messages[index], written, self.names(index)) for index in others]
        thoughts = [thinking_of(self.given.messages[index]) for index in assistants]
        return [
            *[CHANGED] * (not all(as_given)),
            *[FORGOTTEN] * any(thinking not in whole for thinking in thoughts),
            # of a template that does not know the word, `format_prompts` warns before any row is made
            *[WITHOUT_TOOLS] * ("tools" in self.template.names and lacks_tools(self.given.tools, whole)),
        ]

    def _turn(self, index: int, whole: str) -> Turn:
        """Return message number `index`, rendered as the end of a conversation."""
        prompt = self.text(index, add_generation_prompt=True)
        through = whole if index + 1 == len(self.given.messages) else self.text(index + 1)
        start = len(prompt)
        unlike = not through.startswith(prompt)
        if unlike:
            start = self._start(index, prompt, through)
        check_answer(self.given.messages[index], through[start:], self.names(index))
        check_content(self.given.messages[index], letters(through[start:]), self.names(index))
        return Turn(through, start, self._held_out(index, through, index + 1), unlike)

    def _held_out(self, index: int, text: str, until: int | None = None) -> list[Span]:
        """Return where a rendered text has pieces of a message that are not trained on. until: as of `text`."""
        training, messages = self.training[index], self.given.messages
        if not (training.content or training.thinking):
            return []
        shown = [*messages[:index], with_holes(messages[index], training), *messages[index + 1 :]]
        holes = self._replace(shown=shown).text(until)
        return held_out(text, holes, messages[index], training, self.names(index))

    def _start(self, index: int, prompt: str, through: str) -> int:
        """Return where a turn begins in `through`."""
        before = self.text(index)
        if not (prompt.startswith(before) and through.startswith(before)):
            raise ConfigError(
                f"format.chat_template: {self.names(index)}: the text before it depends on what comes after it, "
                "so the assistant's turns can't be told apart",
                "set format.chat_template to a template that renders turn by turn",
            )
        # DeepSeek-R1's prompt ends in `<think>`, so it differs from the text before the turn
        start = _alike(prompt, through)
        content = self.given.messages[index].get("content")
        place = through.find(content.strip(), len(before)) if isinstance(content, str) and content.strip() else -1
        return start if place < 0 else min(start, place)

    def _prompt(self, index: int) -> str | None:
        """Return the prompt of a turn; None if the template refuses the messages before it."""
        with suppress(Exception):
            return self.text(index, add_generation_prompt=True)
        return None

    def _rest(self, index: int, whole: str) -> str:
        """Return a rendered conversation from message number `index` on: a list of tools before it names functions, too."""
        before = self._prompt(index) if self.given.messages[index].get(CALLS) else None
        return whole[_alike(before or "", whole) :]

    def text(self, until: int | None = None, *, add_generation_prompt: bool = False, marked: bool = False) -> str:
        """Render the messages before number `until`."""
        _, tools, documents, arguments = self.given
        given = {**arguments, "messages": self.shown[:until], "tools": tools, "documents": documents}
        return self.template.render(given, self.where, add_generation_prompt=add_generation_prompt, marked=marked)

    def names(self, index: int) -> str:
        return names_of(self.where, index)


class _Marked(NamedTuple):
    """A rendered text without the marks around its blocks. spans: (start, end) of each outermost block."""

    text: str
    spans: list[Span]

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


def _alike(one: str, other: str) -> int:
    """Return how many characters two texts have in common before they differ."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _cut(whole: str, spans: list[Span], out: list[Span], prompts: Iterable[int]) -> Iterator[Row]:
    """Yield the parts of a text. spans: of answers; out: within them, what is not trained on; prompts: where prompts end."""
    ends = {*prompts}
    edges = sorted({0, len(whole), *ends, *(edge for span in (*spans, *out) for edge in span)})
    for start, end in pairwise(edges):
        held, inside = (any(first <= start and end <= last for first, last in some) for some in (out, spans))
        yield {"text": whole[start:end], "train": inside and not held, HELD_OUT: held, "ends_prompt": end in ends}
