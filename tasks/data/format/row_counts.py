"""Count the rows that `format_prompts` dropped or made several examples of, keep the name of the first row of each
kind, and print the counts. The stage works in parts, each up to 32,768 rows of a split; the counts of the parts are
added up to those of the split.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from tasks.artifact import Meta
from tasks.data.format.chat import OUTSIDE, REWRITTEN, UNLIKE_PROMPT
from tasks.stage import Workdir

BAD = "bad"
"""The kind of rows that can't be rendered."""

WARNINGS = {
    BAD: "rows that can't be rendered, dropped",
    OUTSIDE: "rows with more assistant turns than {% generation %} blocks, trained on in the blocks alone",
    UNLIKE_PROMPT: "rows whose answers lack the words that the chat template's prompt ends in, so that the model is asked in "
    "another way than it is trained",
}


@dataclass
class Tally:
    """Counts of source rows and of the training examples that `format_prompts` made from them, for one part of the
    stage's work (up to 32,768 rows of a split) or a whole split.

    Attributes:
        read: number of source rows.
        made: number of training examples written.
        empty: number of rows that gave no example, such as rows without an answer or text. They are dropped.
        apart: number of examples made from rows that gave one example for each turn.
        noted: {kind: (number of rows, name of the first such row)}. A kind is "bad" (the row can't be rendered and is
            dropped) or one of `tasks.data.format.chat`'s notes "rewritten", "outside" and "unlike_prompt".
    """

    read: int = 0
    made: int = 0
    empty: int = 0
    apart: int = 0
    noted: dict[str, tuple[int, str]] = field(default_factory=dict)

    def note(self, what: str, first: str, rows: int = 1) -> None:
        """Add `rows` to the number of rows of the kind `what`: "bad" (rows that can't be rendered) or a note such as
        "rewritten" (the chat template changes earlier turns). first: the name of the first of these rows, used only if
        the kind has none yet."""
        count, known = self.noted.get(what, (0, first))
        self.noted[what] = (count + rows, known)

    def add(self, other: Meta) -> None:
        """Add the counts of another part of the rows, or of another split, to this object's counts, in place. other:
        the value that the other object's `Tally.meta()` returned."""
        for name in ("read", "made", "empty", "apart"):
            setattr(self, name, getattr(self, name) + other[name])
        for what, (rows, first) in other["noted"].items():
            self.note(what, first, rows)

    def rows(self, what: str) -> int:
        """Return the number of rows counted under the kind `what`: "bad" (rows that can't be rendered) or a note such
        as "rewritten" (the chat template changes earlier turns); 0 if none was counted."""
        return self.noted.get(what, (0, ""))[0]

    def meta(self) -> Meta:
        """Return the counts of rows and examples as a JSON object, the form in which `add` reads them."""
        return asdict(self)


def report(splits: dict[str, Tally], out: Workdir) -> Meta:
    """Print how many rows were dropped or formatted in an unusual way, with the name of the first such row. splits:
    {split: its counts}; out: prints the messages.

    Returns metadata for the artifact of `format_prompts`: `dropped` {reason: rows} and, where rows were dropped or
    became several examples, `metrics` with the counts."""
    total = Tally()
    for tally in splits.values():
        total.add(tally.meta())
    if total.empty:
        out.info(f"rows without an answer dropped: {total.empty}")
    if rewritten := total.rows(REWRITTEN):
        out.info(
            f"rows whose earlier turns the chat template rewrites: {rewritten}, made into {total.apart} examples, one for each "
            f"assistant turn (the first: {total.noted[REWRITTEN][1]})"
        )
    for what, text in WARNINGS.items():
        if rows := total.rows(what):
            out.warn(f"{text}: {rows} (the first: {total.noted[what][1]})")
    dropped = {reason: rows for reason, rows in (("empty", total.empty), (BAD, total.rows(BAD))) if rows}
    shown = {f"{reason}_rows_dropped": rows for reason, rows in dropped.items()} | (
        {"rewritten_rows": rewritten, "rewritten_examples": total.apart} if rewritten else {}
    )
    sizes = {f"{split}_rows": tally.made for split, tally in splits.items()}
    return {"dropped": dropped, **({"metrics": {**shown, **sizes}} if shown else {})}
