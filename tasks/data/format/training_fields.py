"""Read the fields of a message that say what of it is trained on, as the programs that define them do.

`weight`: OpenAI, Mistral; `loss_weight`: LLaMA-Factory; `train`, `training`, `train_detail`: axolotl, also in parts of the
content; `loss`, `loss_scale`: ms-swift; `masked`: torchtune. A turn is trained on or not: a weight between is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from trnflow.tasks.errors import DataError

Row = dict[str, Any]

FLAGS = ("weight", "loss_weight", "train", "training", "loss", "loss_scale")
"""Fields that are true or 1 for what is trained on."""
MASKED = "masked"
"""True for what is not."""
DETAILS = ("train_detail", "training_detail")
"""Lists of `begin_offset`, `end_offset` (its last character) and `train`."""
UNCLEAR = ("mask", "loss_mask")
"""Fields to which programs give opposite meanings."""
PREFIX = "prefix"
"""Mistral's: the model goes on with this message, so that no end of a turn follows."""
FIELDS = (*FLAGS, MASKED, *DETAILS, *UNCLEAR)
"""Fields that no chat template gets."""

TEXT_NAMES = ("text", "value", "content", "refusal", "thinking")
"""Fields of a part that hold its text: OpenAI's, LLaMA-Factory's, axolotl's; of a refusal, of thinking."""
THINKING = ("reasoning_content", "thinking", "reasoning")
"""Fields that may hold thinking: most templates read the first, gpt-oss's the second."""

YES_OR_NO = "give 0 or 1 (false or true): loss has no weights here, and none is rounded"

Segment = tuple[str, bool]
"""A piece of a text, and whether it is trained on."""


class Training(NamedTuple):
    """What a message's fields say.

    Attributes:
        turn: Whether the turn is trained on; None if no field says so.
        content, thinking: Segments that are the whole text, where they are not trained on alike; else None.
    """

    turn: bool | None = None
    content: list[Segment] | None = None
    thinking: list[Segment] | None = None

    @property
    def is_said(self) -> bool:
        return self != Training()


def is_plain(message: Row) -> bool:
    """Return whether a message is a role and a text alone."""
    return message.keys() == {"role", "content"} and isinstance(message["content"], str)


def flag_of(given: Row, where: str) -> bool | None:
    """Return what the flags of a message, or of a part, say; None without one. Raises DataError for other values than 0 and
    1, and for flags that contradict each other."""
    flags = dict(_flags(given, where))
    if len({*flags.values()}) > 1:
        said = " and ".join(f"{name} {given[name]!r}" for name in flags)
        raise DataError(f"{where} has {said}, which contradict each other", "leave one out")
    return next(iter(flags.values()), None)


def _flags(given: Row, where: str) -> Iterator[tuple[str, bool]]:
    for name in (*FLAGS, MASKED):
        value = given.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or value not in (0, 1):
            raise DataError(f"{where} has {name} {value!r}", YES_OR_NO)
        yield name, bool(value) != (name == MASKED)


def training_of(message: Row, where: str) -> Training:
    """Return what the fields of a message and of its parts say. Raises DataError for a field that can't be obeyed."""
    if is_plain(message):
        return Training()
    _refuse_unclear(message, where)
    turn = flag_of(message, where)
    thought = next((message[name] for name in THINKING if message.get(name)), None)
    content, thinking = (segments_of(text, where) for text in (message.get("content"), thought))
    detail = next((message[name] for name in DETAILS if message.get(name) is not None), None)
    if detail:
        if content:
            raise DataError(f"{where} has {DETAILS[0]} and parts that say what is trained on", "leave one out")
        content = _detailed(message.get("content"), detail, where)
    if message["role"] != "assistant":
        parts = message["content"] if isinstance(message.get("content"), list) else []
        marked = turn or any(flag_of(part, where) for part in parts if isinstance(part, dict))
        return _untrained(marked or bool(detail and any(train for _, train in content or ())), message, where)
    if (content is None) != (thinking is None) and message.get("content") and thought:
        silent = "its thinking" if content else "its content"
        raise DataError(
            f"{where} says of a part of its text alone what is trained on, and nothing of {silent}",
            f"give {silent} as a list of parts with `train`, too",
        )
    return Training(False if turn is None and detail == [] else turn, content, thinking)


def _untrained(marked: bool, message: Row, where: str) -> Training:
    """Return what the fields of another's message than the assistant's say. Raises DataError if it is to be trained on."""
    if marked:
        raise DataError(
            f"{where} ({message['role']}) is marked to be trained on, and only turns of the assistant are",
            "leave the mark out, or set it to 0",
        )
    return Training()


def _refuse_unclear(message: Row, where: str) -> None:
    for name in UNCLEAR:
        if message.get(name) is not None:
            raise DataError(
                f"{where} has the field {name}, which programs read in opposite ways",
                "give `train`: true for what is trained on, false for what is not",
            )
    if message.get(PREFIX):
        raise DataError(
            f"{where} is a {PREFIX}, with which the model goes on, and turns are trained on with their end",
            "give the whole answer, without this field",
        )


def segments_of(content: Any, where: str) -> list[Segment] | None:
    """Return the texts of parts of which some say whether they are trained on; None if none does. Parts that say nothing are."""
    if not isinstance(content, list):
        return None
    flags = [flag_of(part, where) if isinstance(part, dict) else None for part in content]
    if all(flag is None for flag in flags):
        return None
    return [(text_of(part), flag is not False) for part, flag in zip(content, flags, strict=True)]


def text_of(part: Any) -> str:
    """Return a part's text, "" without one."""
    if isinstance(part, str):
        return part
    return next((part[name] for name in TEXT_NAMES if isinstance(part.get(name), str)), "")


def _detailed(content: Any, detail: Any, where: str) -> list[Segment]:
    """Cut a text as axolotl's details say; what none names is not trained on."""
    if not isinstance(content, str):
        raise DataError(f"{where} has {DETAILS[0]}, and its content is no text", "say `train` in the parts")
    trained = [False] * len(content)
    for entry in detail if isinstance(detail, list) else [detail]:
        given = entry if isinstance(entry, dict) else {}
        begin, end, train = (given.get(name) for name in ("begin_offset", "end_offset", "train"))
        if not (type(begin) is type(end) is int and 0 <= begin <= end < len(content) and isinstance(train, bool)):
            raise DataError(
                f"{where}: {DETAILS[0]} has {entry!r:.80}, for a text of {len(content)} characters",
                "give begin_offset and end_offset (the first and the last character, from 0) and train (true or false)",
            )
        if train:
            trained[begin : end + 1] = [True] * (end + 1 - begin)
    edges = [0, *(at for at in range(1, len(content)) if trained[at] != trained[at - 1]), len(content)]
    return [(content[start:end], trained[start]) for start, end in pairwise(edges) if end > start]
