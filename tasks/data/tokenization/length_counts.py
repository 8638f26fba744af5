"""Count what tokenising did to rows, with examples, and their lengths. A split's shards are added up."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.texts import text_of_example
from trnflow.tasks.data.tokenization.answer_ends import NONE, AnswerEnds
from trnflow.tasks.stage import Workdir
from trnflow.tasks.system.arrays import load_array

if TYPE_CHECKING:
    import pyarrow as pa

    from trnflow.tasks.metadata import Counts

BLOCK = 1 << 18
"""Rows whose lengths are counted at once."""

TAIL = 30
"""Number of characters of an answer's end that an example shows."""

WORDS = 60
"""Number of characters of the text that an example shows."""


class Example(NamedTuple):
    """A row that was cut, dropped, or encoded otherwise than it looks. row: from 1; text: its beginning."""

    row: int
    what: str
    text: str

    @classmethod
    def of(cls, rows: pa.Table, row: int, what: str) -> Example:
        """Make an example of the row at index `row`, from 0."""
        text = text_of_example(rows.slice(row, 1).to_pylist()[0])
        return cls(row + 1, what, shorten(" ".join(text[:1000].split()), WORDS, placeholder=" ..."))

    def describe(self, split: str, before: int = 0) -> str:
        """Return the example as one line. before: rows of the split before the shard."""
        return f"split {split} row {self.row + before}: {self.what}, in {self.text!r}"


@dataclass
class Count:
    """Counts of a shard's or a split's rows.

    Attributes:
        read: Source rows.
        overlong: Source rows longer than `max_length`.
        forged: Source rows that spell a special token; none is dropped for it.
        apart: Source rows of which a prompt and its answer are encoded apart.
        unsupervised: Source rows dropped whole.
        ends: {id of the token: answers that it ends}, of a language model.
        cut: Answers whose end is cut off.
        unended: Answers that no special token ends.
        dropped: {"overlong", "unsupervised": token rows}, pieces counted apart.
        first: {"overlong", "forged", "apart", "cut", "unended": the first such row}.
    """

    read: int = 0
    rows: int = 0
    tokens: int = 0
    longest: int = 0
    overlong: int = 0
    forged: int = 0
    apart: int = 0
    unsupervised: int = 0
    cut: int = 0
    unended: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=lambda: {"overlong": 0, "unsupervised": 0})
    first: dict[str, Example] = field(default_factory=dict)

    @property
    def answers(self) -> int:
        return sum(self.ends.values()) + self.cut + self.unended

    def add(self, other: Meta) -> None:
        """Add the counts (`meta()`) of the split's next shard."""
        # in order: rows are numbered by the rows read before
        for what, (row, *rest) in other["first"].items():
            self.first.setdefault(what, Example(row + self.read, *rest))
        for name in ("read", "rows", "tokens", "overlong", "forged", "apart", "unsupervised", "cut", "unended"):
            setattr(self, name, getattr(self, name) + other[name])
        self.longest = max(self.longest, other["longest"])
        self.ends = {end: self.ends.get(end, 0) + other["ends"].get(end, 0) for end in self.ends | other["ends"]}
        self.dropped = {reason: count + other["dropped"][reason] for reason, count in self.dropped.items()}

    def add_ends(self, ends: AnswerEnds, rows: pa.Table) -> None:
        """Count how the answers of a shard's rows end."""
        self.ends = ends.counts()
        unended = ~ends.cut & (ends.token == NONE)
        self.cut, self.unended = int(ends.cut.sum()), int(unended.sum())
        for what, which, verb in (("cut", ends.cut, "should end"), ("unended", unended, "ends")):
            if which.any():
                row = int(ends.row[which].min())
                parts = rows.slice(row, 1).to_pylist()[0]["parts"]
                tail = "".join(part["text"] for part in parts if part["train"])[-TAIL:]
                self.first[what] = Example.of(rows, row, f"its answer {verb} in {tail!r}")

    def meta(self) -> Meta:
        """Return the counts as JSON, which `add` reads."""
        return {**asdict(self), "first": {what: list(example) for what, example in self.first.items()}}


def _examples(counts: dict[str, Count], what: str) -> tuple[str, Meta]:
    """Return a kind's first example, of the first split that has one: (a line, metadata)."""
    for split, count in counts.items():
        if example := count.first.get(what):
            return example.describe(split), {"split": split, **example._asdict()}
    raise KeyError(what)


def report(
    max_length: int, overlong: str, counts: dict[str, Count], dropped: Counts, out: Workdir, side: str = "right"
) -> Meta:
    """Print how many rows were cut, dropped, or encoded otherwise than they look; return {kind: the first}.

    side: where rows are cut.
    """
    examples: Meta = {}
    too_long = {split: count.overlong for split, count in counts.items() if count.overlong}
    if too_long:
        example, examples["overlong"] = _examples(counts, "overlong")
        cut = "cut at their beginning, as the tokenizer's truncation_side says" if side == "left" else "cut"
        verb = {"truncate": cut, "split": "split", "drop": "dropped"}[overlong]
        many = ", ".join(f"{number} of {split}" for split, number in too_long.items())
        log = out.info if overlong == "split" else out.warn
        log(f"rows longer than {max_length} tokens, {verb}: {many} (the first: {example})")
    forged = sum(count.forged for count in counts.values())
    if forged:
        example, examples["forged"] = _examples(counts, "forged")
        out.warn(f"rows whose text spells a special token, read as plain text: {forged} (the first: {example})")
    if apart := sum(count.apart for count in counts.values()):
        example, examples["apart"] = _examples(counts, "apart")
        out.warn(
            f"rows whose prompt has other tokens with its answer than alone: {apart}; they are encoded apart, so that the "
            f"model learns from the prompt that programs send (the first: {example})"
        )
    if dropped.get("unsupervised"):
        where = {split: count.unsupervised for split, count in counts.items() if count.unsupervised}
        many = ", ".join(f"{number} of the {counts[split].read} of {split}" for split, number in where.items())
        share = f" ({many}; a prompt may fill max_length)" if many else " (pieces of rows that were split)"
        out.warn(f"rows without a token to train on, dropped: {dropped['unsupervised']}{share}")
    return examples


def report_ends(max_length: int, counts: dict[str, Count], out: Workdir) -> Meta:
    """Print how many answers have no end that the model could learn; return {kind: the first}."""
    examples: Meta = {}
    reasons = {"cut": f"cut at {max_length} tokens (tokenize.max_length)", "unended": "that no special token ends"}
    for what, reason in reasons.items():
        lost = {split: getattr(count, what) for split, count in counts.items() if getattr(count, what)}
        if lost:
            example, examples[what] = _examples(counts, what)
            many = ", ".join(f"{number} of the {counts[split].answers} of {split}" for split, number in lost.items())
            out.warn(f"answers {reason}, so that the model does not learn their end: {many} (the first: {example})")
    return examples


def row_lengths(folder: Path) -> Meta:
    """Return a split's {"percentiles", "rows": {"<largest length of the bin>": rows}}, bins up to 1, 2, 4, 8, ..."""
    import numpy as np

    offsets = load_array(folder / "offsets.npy", mapped=True)
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
