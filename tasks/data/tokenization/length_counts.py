"""Count what tokenising did to the rows: how many were cut or dropped, with one example row of each kind, and how long
the rows are. A source row is a row of texts; tokenising makes none, one or several token rows of it. A split is
tokenised in shards, which are runs of consecutive source rows; the counts of a split's shards are added up.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.stage import Workdir

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 1 << 18
"""Number of rows whose lengths are counted at once, which limits the memory used."""

WORDS = 60
"""Number of characters of the text that an example shows."""


class Example(NamedTuple):
    """A row that was cut, dropped, or encoded otherwise than its text looks, as an example for messages.

    Attributes:
        row: the row's number, from 1.
        what: what happened to the row, in words.
        text: the beginning of the row's text.
    """

    row: int
    what: str
    text: str

    @classmethod
    def of(cls, rows: pa.Table, row: int, what: str) -> Example:
        """Make an example, for messages, of one row that tokenising cut, dropped or encoded otherwise than its text
        looks. rows: a table of texts; row: the row's index in the table, from 0; what: what happened to the row, in
        words."""
        given = rows.slice(row, 1).to_pylist()[0]
        text = given["text"] if "text" in given else "".join(part["text"] for part in given["parts"])
        return cls(row + 1, what, shorten(" ".join(text[:1000].split()), WORDS, placeholder=" ..."))

    def describe(self, split: str, before: int = 0) -> str:
        """Return the example as one line for messages. split: the split's name; before: how many rows of the split
        precede the shard (run of consecutive rows that is tokenised at once) in which `row` is counted."""
        return f"split {split} row {self.row + before}: {self.what}, in {self.text!r}"


@dataclass
class Count:
    """Counts of what tokenising did to the rows of a shard (run of consecutive rows that is tokenised at once) or a
    split.

    Attributes:
        read: number of source rows.
        rows, tokens: numbers of token rows, and of their tokens, that were written.
        longest: number of tokens in the longest token row that was written.
        overlong: number of source rows longer than `max_length`, whether they were cut, split or dropped.
        forged: number of source rows whose text spells a special token such as `</s>`. The spelled token is encoded
            as ordinary text; no row is dropped for this reason.
        unsupervised: number of source rows dropped as a whole because they have no token to train on.
        dropped: {reason: number of token rows dropped}. Reasons: "overlong" (longer than `max_length`, if the setting
            `overlong` is "drop") and "unsupervised" (no token to train on; if a source row was split, each of its
            pieces counts).
        first: {"overlong" or "forged": the first source row of this kind}.
    """

    read: int = 0
    rows: int = 0
    tokens: int = 0
    longest: int = 0
    overlong: int = 0
    forged: int = 0
    unsupervised: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: {"overlong": 0, "unsupervised": 0})
    first: dict[str, Example] = field(default_factory=dict)

    def add(self, other: Meta) -> None:
        """Add to this object, in place, the counts of the split's next shard (run of consecutive rows that is tokenised
        at once). other: the value that the shard's `Count.meta()` returned. Call this in the order of the shards,
        because rows are numbered by the rows read before."""
        for what, (row, *rest) in other["first"].items():
            self.first.setdefault(what, Example(row + self.read, *rest))
        self.read += other["read"]
        self.rows += other["rows"]
        self.tokens += other["tokens"]
        self.longest = max(self.longest, other["longest"])
        self.overlong += other["overlong"]
        self.forged += other["forged"]
        self.unsupervised += other["unsupervised"]
        self.dropped = {reason: count + other["dropped"][reason] for reason, count in self.dropped.items()}

    def meta(self) -> Meta:
        """Return the counts of rows and tokens as a JSON object, the form in which `add` reads them."""
        return {**asdict(self), "first": {what: list(example) for what, example in self.first.items()}}


def _examples(counts: dict[str, Count], what: str) -> tuple[str, Meta]:
    """Return the first example of a kind, from the first split that has one: (a line of text, metadata)."""
    for split, count in counts.items():
        if example := count.first.get(what):
            return example.describe(split), {"split": split, **example._asdict()}
    raise KeyError(what)


def report(max_length: int, overlong: str, counts: dict[str, Count], dropped: Meta, out: Workdir) -> Meta:
    """Print how many rows tokenising cut, dropped, or encoded otherwise than their text looks, each with an example.

    Args:
        max_length, overlong: the settings of the stage `tokenize_text`: the most tokens of a row, and what happens to
            longer rows.
        counts: {split: the counts of the split's rows}.
        dropped: {reason: number of token rows dropped from all splits together}, with the reasons of `Count.dropped`.
        out: prints the messages.

    Returns {kind: the first row of this kind} for the artifact's metadata. The kinds: "overlong" (rows longer than
    `max_length`) and "forged" (rows whose text spells a special token); a kind without rows is left out. The row is
    described by `split`, `row` (its number in the split, from 1), `what` (what happened to it) and `text` (how its text
    begins).
    """
    examples: Meta = {}
    too_long = {split: count.overlong for split, count in counts.items() if count.overlong}
    if too_long:
        example, examples["overlong"] = _examples(counts, "overlong")
        verb = {"truncate": "cut", "split": "split", "drop": "dropped"}[overlong]
        many = ", ".join(f"{number} of {split}" for split, number in too_long.items())
        log = out.info if overlong == "split" else out.warn
        log(f"rows longer than {max_length} tokens, {verb}: {many} (the first: {example})")
    forged = sum(count.forged for count in counts.values())
    if forged:
        example, examples["forged"] = _examples(counts, "forged")
        out.warn(f"rows whose text spells a special token, read as plain text: {forged} (the first: {example})")
    if dropped.get("unsupervised"):
        where = {split: count.unsupervised for split, count in counts.items() if count.unsupervised}
        many = ", ".join(f"{number} of the {counts[split].read} of {split}" for split, number in where.items())
        said = f" ({many}; a prompt may fill max_length)" if many else " (pieces of rows that were split)"
        out.warn(f"rows without a token to train on, dropped: {dropped['unsupervised']}{said}")
    return examples


def row_lengths(folder: Path) -> Meta:
    """Return a summary of the lengths of a split's token rows, in tokens. folder: the folder with the split's
    `offsets.npy`.

    The result has two keys. `percentiles`: {`length_p50`, `length_p95`, `length_p99`: the length that 50, 95 or 99 % of
    the rows do not exceed}. `rows`: a histogram, {"<largest length in the bin>": number of rows}, with bins up to 1, 2,
    4, 8, ... tokens; empty bins are left out."""
    import numpy as np

    offsets = np.load(folder / "offsets.npy", mmap_mode="r")
    counts = np.zeros(1, dtype=np.int64)  # counts[n]: number of rows with n tokens
    for start in range(0, len(offsets) - 1, BLOCK):
        more = np.bincount(np.diff(offsets[start : start + BLOCK + 1]), minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    below = np.cumsum(counts)
    at = {f"length_p{share}": int(np.searchsorted(below, below[-1] * share / 100)) for share in (50, 95, 99)}
    bins = [0, *(2**power for power in range(len(counts).bit_length() + 1))]
    edges = [0, *below[np.minimum(bins[1:], len(counts) - 1)].tolist()]
    rows = {most: end - start for most, (start, end) in zip(bins[1:], pairwise(edges), strict=True) if end > start}
    return {"percentiles": at, "rows": {str(most): count for most, count in rows.items()}}
