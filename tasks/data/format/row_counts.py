"""Count the rows that `format_prompts` read, dropped or formatted in an unusual way, and print the counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.chat import (
    ANSWER_OPENING,
    BLANK,
    CALL_TEXT,
    CHANGED,
    FORGOTTEN,
    LINES,
    OPENING,
    OUTSIDE,
    REWRITTEN,
    UNLIKE_PROMPT,
    UNTAUGHT,
    WITHOUT_TOOLS,
    RowExamples,
)
from trnflow.tasks.data.format.preferences import EXCHANGED, TIED
from trnflow.tasks.data.format.read_fields import READ, UNREAD
from trnflow.tasks.data.format.row_makers import CUT_WORD
from trnflow.tasks.kinds.unpaired_preference import DESIRABLE, UNDESIRABLE
from trnflow.tasks.stage import Workdir

if TYPE_CHECKING:
    from trnflow.tasks.metadata import Counts

BAD = "bad"
"""Rows that can't be rendered."""

WARNINGS = {
    BAD: "rows that can't be rendered, dropped",
    BLANK: "rows with an empty answer of the assistant, which teaches the model to say nothing (`weight: 0` leaves it out)",
    OUTSIDE: "rows with more assistant turns than {% generation %} blocks, trained on in the blocks alone",
    UNLIKE_PROMPT: "rows whose answers lack the words that the chat template's prompt ends in, so that the model is asked in "
    "another way than it is trained",
    CUT_WORD: "rows with a span that begins or ends within a word (characters count from 0, and the end is not included)",
    EXCHANGED: "pairs whose rejected answer has the higher score, as if the two were exchanged",
    WITHOUT_TOOLS: "rows whose tools the chat template does not write",
}
REMARKS = {
    UNTAUGHT: "rows of which no turn is trained on, as their fields say",
    OPENING: "rows that the chat template begins with words of its own",
    ANSWER_OPENING: "rows whose answers the chat template begins with words of its own, which are trained on",
    CHANGED: "rows of which the chat template takes something off a message",
    FORGOTTEN: "rows of which the chat template leaves out the thinking of earlier turns, as it does in use",
    LINES: "rows whose content in parts is joined by line breaks, since the chat template takes texts",
    CALL_TEXT: "rows whose function_call turns are written as text, since the chat template writes no calls of tools",
}
"""What is said of rows with a note: WARNINGS of what is rarely meant."""


@dataclass
class DropCounts:
    """Counts of the rows of a part or a split.

    Attributes:
        read: Source rows.
        written: Examples.
        empty: Rows without an example.
        apart: Examples of rows "rewritten".
        noted: {"bad" or a note: (rows, the first)}: its name; for "bad" of a part its number, of a split the
            error's message.
    """

    read: int = 0
    written: int = 0
    empty: int = 0
    apart: int = 0
    noted: dict[str, tuple[int, str]] = field(default_factory=dict)

    def count(self, made: RowExamples, where: str) -> None:
        """Add what was made of a row. where: its name."""
        for note, text in made.notes.items():
            self.note(note, f"{where}: {text!r}" if text else where)
        self.written += len(made.examples)
        self.empty += not made.examples
        self.apart += len(made.examples) if REWRITTEN in made.notes else 0

    def note(self, what: str, first: str, rows: int = 1) -> None:
        """Add rows as `what`; an earlier `first` stays."""
        count, known = self.noted.get(what, (0, first))
        self.noted[what] = (count + rows, known)

    def add(self, other: Meta) -> None:
        """Add the counts (`meta()`) of another part or split."""
        for name in ("read", "written", "empty", "apart"):
            setattr(self, name, getattr(self, name) + other[name])
        for what, (rows, first) in other["noted"].items():
            self.note(what, first, rows)

    def rows(self, what: str) -> int:
        """Return the rows of a kind."""
        return self.noted.get(what, (0, ""))[0]

    @property
    def unread(self) -> list[str]:
        """The fields of messages that no rendering read."""
        names = [what.removeprefix(UNREAD) for what in self.noted if what.startswith(UNREAD)]
        return sorted(name for name in names if not self.rows(READ + name))

    def meta(self) -> Meta:
        """Return the counts as JSON, which `add` reads."""
        return asdict(self)


def report(splits: dict[str, DropCounts], out: Workdir, empty: str = "without an answer") -> tuple[Counts, Counts]:
    """Print, for all splits together, what was dropped or formatted in an unusual way, with the first row of each kind.

    Returns ({"empty", "bad" or "tied": rows}, metrics; {} if every row gave one example).
    """
    total = DropCounts()
    for tally in splits.values():
        total.add(tally.meta())
    if empties := total.empty - total.rows(TIED):
        out.info(f"rows {empty} dropped: {empties}")
    if rewritten := total.rows(REWRITTEN):
        out.info(
            f"rows whose earlier turns the chat template rewrites: {rewritten}, made into {total.apart} examples, one for each "
            f"assistant turn (the first: {total.noted[REWRITTEN][1]})"
        )
    for texts, say in ((WARNINGS, out.warn), (REMARKS, out.info)):
        for what, text in texts.items():
            if rows := total.rows(what):
                say(f"{text}: {rows} (the first: {total.noted[what][1]})")
    if tied := total.rows(TIED):
        out.info(f"pairs with equal answers dropped: {tied} (the first: {total.noted[TIED][1]})")
    marks = {name: rows for name in (DESIRABLE, UNDESIRABLE) if (rows := total.rows(name))}
    if marks:
        out.info("answers: " + ", ".join(f"{rows} {name}" for name, rows in marks.items()))
    reasons = (("empty", empties), (BAD, total.rows(BAD)), (TIED, tied))
    dropped = {reason: rows for reason, rows in reasons if rows}
    shown = {f"{reason}_rows_dropped": rows for reason, rows in dropped.items()} | {
        f"{name}_answers": rows for name, rows in marks.items()
    }
    shown |= {"rewritten_rows": rewritten, "rewritten_examples": total.apart} if rewritten else {}
    sizes = {f"{split}_rows": tally.written for split, tally in splits.items()}
    return dropped, {**shown, **sizes} if shown else {}
