"""Count the rows that the stage `format_prompts` read, dropped or formatted in an unusual way, and print the counts.

The stage turns each row of a split into training examples (texts): usually one, but none for a row without an answer,
and several for some conversations. The stage works on parts of a split, each up to 32,768 rows. It counts each part and
adds up the counts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.chat import OUTSIDE, REWRITTEN, UNLIKE_PROMPT
from trnflow.tasks.stage import Workdir

BAD = "bad"
"""The kind of rows that can't be rendered."""

WARNINGS = {
    BAD: "rows that can't be rendered, dropped",
    OUTSIDE: "rows with more assistant turns than {% generation %} blocks, trained on in the blocks alone",
    UNLIKE_PROMPT: "rows whose answers lack the words that the chat template's prompt ends in, so that the model is asked in "
    "another way than it is trained",
}


@dataclass
class DropCounts:
    """Counts of source rows and of the training examples that `format_prompts` made from them, for one part of the
    stage's work (up to 32,768 rows of a split) or a whole split.

    Attributes:
        read: number of source rows.
        made: number of training examples written.
        empty: number of rows dropped because they gave no example, such as rows without an answer or text.
        apart: number of examples made from the rows of the kind "rewritten", which give one example for each turn.
        noted: {kind: (number of rows, first row)}. The kinds: "bad" (the row can't be rendered and is dropped),
            "rewritten" (the chat template changes earlier turns), "outside" (more assistant turns than `{% generation
            %}` blocks) and "unlike_prompt" (the training text lacks words that end the prompt at inference). The first
            row is given by its name; for "bad" of a part by its number in the split, from 0, and of a whole split by
            the error's message, which begins with the row's name.
    """

    read: int = 0
    made: int = 0
    empty: int = 0
    apart: int = 0
    noted: dict[str, tuple[int, str]] = field(default_factory=dict)

    def note(self, what: str, first: str, rows: int = 1) -> None:
        """Add `rows` to the number of rows of the kind `what`: "bad" (rows that can't be rendered) or a note such as
        "rewritten" (the chat template changes earlier turns). first: the first of the added rows (see `noted`), kept
        only if nothing was noted for this kind before."""
        count, known = self.noted.get(what, (0, first))
        self.noted[what] = (count + rows, known)

    def add(self, other: Meta) -> None:
        """Add the counts of another Tally, of another part of the rows or another split, to this object's counts, in
        place. other: the value that the other Tally's `meta()` returned."""
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


def report(splits: dict[str, DropCounts], out: Workdir) -> Meta:
    """Print, for all splits together, how many rows `format_prompts` dropped and how many it formatted in an unusual
    way. A kind without rows is not printed.

    The kinds of rows: dropped, because they gave no example; dropped, because they can't be rendered; with earlier
    turns that the chat template rewrites; with more assistant turns than `{% generation %}` blocks; with answers that
    lack the words at the end of the template's prompt. The message also names the first row, except for the first kind.

    splits: {split: the counts of the split's rows}; out: prints the messages. Returns a dict with these keys:

    dropped: {reason: number of rows removed from all splits together}. A reason is "empty" (no example) or "bad" (can't
        be rendered).
    metrics: only if rows were dropped or have rewritten turns. Counts: `empty_rows_dropped` and `bad_rows_dropped` (as
        in `dropped`), `rewritten_rows` (rows with rewritten turns), `rewritten_examples` (the examples made from
        these rows), and `<split>_rows` (all examples of a split)."""
    total = DropCounts()
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
