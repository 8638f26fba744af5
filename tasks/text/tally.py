"""What became of rows as they were tokenised: counts, the first row of each kind that was lost or cut, the lengths."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, NamedTuple

from tasks.artifact import Meta
from tasks.stage import Workdir

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 1 << 18
"""Rows whose lengths are counted at once."""

WORDS = 60
"""Letters of an example."""


class Example(NamedTuple):
    """row: from 1, among what was read; what: is to be said of it; text: its first words."""

    row: int
    what: str
    text: str

    @classmethod
    def of(cls, rows: pa.Table, row: int, what: str) -> Example:
        """row: from 0."""
        given = rows.slice(row, 1).to_pylist()[0]
        text = given["text"] if "text" in given else "".join(part["text"] for part in given["parts"])
        return cls(row + 1, what, shorten(" ".join(text[:1000].split()), WORDS, placeholder=" ..."))

    def told(self, split: str, before: int = 0) -> str:
        return f"split {split} row {self.row + before}: {self.what}, in {self.text!r}"


@dataclass
class Count:
    """What became of rows. read: of the texts; forged: whose text spells special tokens; first: the first of a kind."""

    read: int = 0
    rows: int = 0
    tokens: int = 0
    longest: int = 0
    overlong: int = 0
    forged: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: {"overlong": 0, "unsupervised": 0})
    first: dict[str, Example] = field(default_factory=dict)

    def add(self, other: Meta) -> None:
        """The shard that comes next."""
        for what, (row, *told) in other["first"].items():
            self.first.setdefault(what, Example(row + self.read, *told))
        self.read += other["read"]
        self.rows += other["rows"]
        self.tokens += other["tokens"]
        self.longest = max(self.longest, other["longest"])
        self.overlong += other["overlong"]
        self.forged += other["forged"]
        self.dropped = {reason: count + other["dropped"][reason] for reason, count in self.dropped.items()}

    def meta(self) -> Meta:
        return {**asdict(self), "first": {what: list(example) for what, example in self.first.items()}}


def _examples(counts: dict[str, Count], what: str) -> tuple[str, Meta]:
    """(as it is told, as metadata) of the first row in the first split that has one."""
    for split, count in counts.items():
        if example := count.first.get(what):
            return example.told(split), {"split": split, **example._asdict()}
    raise KeyError(what)


def report(max_length: int, overlong: str, counts: dict[str, Count], dropped: Meta, out: Workdir) -> Meta:
    """Tell what was lost or read otherwise than written, each with an example; the examples."""
    examples: Meta = {}
    too_long = {split: count.overlong for split, count in counts.items() if count.overlong}
    if too_long:
        told, examples["overlong"] = _examples(counts, "overlong")
        verb = {"truncate": "cut", "split": "split", "drop": "dropped"}[overlong]
        many = ", ".join(f"{number} of {split}" for split, number in too_long.items())
        say = out.info if overlong == "split" else out.warn
        say(f"rows longer than {max_length} tokens, {verb}: {many} (the first: {told})")
    forged = sum(count.forged for count in counts.values())
    if forged:
        told, examples["forged"] = _examples(counts, "forged")
        out.warn(f"rows whose text spells a special token, read as plain text: {forged} (the first: {told})")
    if dropped.get("unsupervised"):
        out.warn(f"rows without a token to train on, dropped: {dropped['unsupervised']} (a prompt may fill max_length)")
    return examples


def row_lengths(folder: Path) -> Meta:
    """Of a split's folder, `percentiles {length_p50 ...}` and the histogram `rows {"<most tokens>": rows}`, in bins that
    double."""
    import numpy as np

    offsets = np.load(folder / "offsets.npy", mmap_mode="r")
    counts = np.zeros(1, dtype=np.int64)  # rows of each length
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
