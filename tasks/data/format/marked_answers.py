"""Make examples of a row of format.task unpaired_preference: a prompt with an answer and its mark, or a pair's two answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.chat import RowExamples
from trnflow.tasks.data.format.conversation import ChatColumns, Row
from trnflow.tasks.data.format.preferences import TIED, reader_and_writer, teaches
from trnflow.tasks.data.format.templates import ChatTemplate
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.preference import CHOSEN, REJECTED
from trnflow.tasks.kinds.unpaired_preference import COMPLETION, DESIRABLE, LABEL, UNDESIRABLE, are_marked

if TYPE_CHECKING:
    from trnflow.tasks.metadata import RowsMeta

MARKS = {"true": 1, "1": 1, "1.0": 1, "false": 0, "0": 0, "0.0": 0}


def marked_maker(
    meta: RowsMeta, columns: ChatColumns, chat: Meta | None, templates: dict[str, ChatTemplate]
) -> Callable[[Row, str], RowExamples]:
    """Return the function that makes {"parts", "label"} of a row, two of a pair. Raises DataError for a label that is none.

    columns, chat, templates: as of `pair_maker`.
    """
    paired = not are_marked(meta["columns"])
    names = {} if paired else {COMPLETION: CHOSEN}
    nested = [names.get(name, name) for name in meta.get("nested", ())]
    read, write = reader_and_writer(nested, columns, chat, templates)

    def make(row: Row, where: str) -> RowExamples:
        given = row if paired else {**row, CHOSEN: row[COMPLETION], REJECTED: row[COMPLETION]}
        marks = [1, 0] if paired else [mark_of(row[LABEL], where)]
        prompt, *answers = read(given, where)
        if paired and answers[0] == answers[1]:
            return RowExamples([], {TIED: ""})
        written = [write(given, prompt, answer, where) for answer, _ in zip(answers, marks, strict=False)]
        if not all(map(teaches, written)):
            return RowExamples([])
        examples = [{"parts": answer.examples[0], LABEL: mark} for answer, mark in zip(written, marks, strict=True)]
        marked = dict.fromkeys((DESIRABLE if mark else UNDESIRABLE for mark in marks), "")
        return RowExamples(examples, {**written[0].notes, **marked})

    return make


def mark_of(value: Any, where: str) -> int:
    mark = MARKS.get(str(float(value) if isinstance(value, float) else value).strip().lower())
    if mark is None:
        raise DataError(
            f"{where}: the label is {value!r:.40}, neither true nor false",
            f"give {LABEL} true (or 1) for a desirable answer, and false (or 0) for one that is not",
        )
    return mark


def refuse_alike(desirable: int, undesirable: int) -> None:
    """Raise DataError unless train has answers of both marks."""
    if not (desirable and undesirable):
        what = DESIRABLE if desirable else UNDESIRABLE
        raise DataError(
            f"all answers of train are {what}: there is nothing to tell apart",
            "give answers of both kinds, or train on good ones with train.objective=sft",
        )
