"""What a split is put together from: of each source some rows, less those that dedupe, weights and limits take away.

A split's rows are counted through its sources, in the order of the sources' names; of texts that repeat, the first in this order
stays. Rows of validation and test are dropped by a limit alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tasks.artifact import Meta
from tasks.errors import DataError
from tasks.stage import Workdir
from tasks.text.labels import LabelSet
from tasks.text.mixture import Strategy, amounts, interleaved
from tasks.text.scratch import ReadSplit, kept_rows, label_ids, written_schema
from tasks.text.selection import (
    all_rows,
    any_of,
    limited,
    made_splits,
    repeated,
    shared_rows,
    stratified_splits,
    within,
)
from tasks.text.sources import SPLITS
from tasks.text.tables import ROW_GROUP, regrouped, write_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.text.selection import Hashes, Mask


class Share(NamedTuple):
    """Of a source the rows of `read` where `mask`; all of them `times` times over, and those where `more` once more."""

    source: str
    read: ReadSplit
    labels: LabelSet | None
    mask: Mask
    times: int = 1
    more: Mask | None = None

    @property
    def hashes(self) -> Hashes:
        return self.read.hashes[self.mask]

    @property
    def distinct(self) -> int:
        """How many rows there are to take from."""
        return int(self.mask.sum())

    @property
    def rows(self) -> int:
        """How many are written."""
        return self.distinct * self.times + (int(self.more.sum()) if self.more is not None else 0)

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        for keep in [self.mask] * self.times + ([self.more] if self.more is not None else []):
            yield from kept_rows(self.read, keep, self.labels, schema)


Shares = dict[str, list[Share]]


def shares_of(
    source: str,
    read: Mapping[str, ReadSplit],
    labels: LabelSet | None,
    split: Mapping[str, float],
    seed: int,
    *,
    stratify: bool,
) -> dict[str, Share]:
    """A source's splits and, where it lacks them, those that `split` makes from its train."""
    train = read["train"]
    fractions = {name: share for name, share in split.items() if name not in read}
    if stratify and fractions and labels:
        masks = stratified_splits(train.hashes, label_ids(train, labels), fractions, seed)
    else:
        masks = made_splits(train.hashes, fractions, seed)
    made = {name: Share(source, train, labels, mask) for name, mask in masks.items()}
    return made | {
        name: Share(source, rows, labels, all_rows(rows.hashes)) for name, rows in read.items() if name != "train"
    }


def by_split(sources: list[dict[str, Share]]) -> Shares:
    """train, validation and test, each of those sources that have it."""
    found = {name: [shares[name] for shares in sources if name in shares] for name in SPLITS}
    return {name: shares for name, shares in found.items() if shares}


class Dropped(NamedTuple):
    """rows: {reason: rows}; leakage: {"train/test": rows of the first whose text also stands in the second}; overlap:
    {"one source/another": rows of the first's train whose text also stands in the second's}."""

    rows: Meta
    leakage: Meta
    overlap: Meta


def deduped(shares: Shares, *, drop: bool) -> tuple[Shares, Dropped]:
    """Counts texts that splits share; with `drop` takes rows of train that repeat an earlier one, or stand in another split."""
    hashes = {name: joined([share.hashes for share in some]) for name, some in shares.items()}
    shared = shared_rows(hashes)
    leakage = {f"{a}/{b}": int(mask.sum()) for (a, b), mask in shared.items()}
    trains = {share.source: share.hashes for share in shares["train"]}
    overlap = {f"{a}/{b}": int(mask.sum()) for (a, b), mask in shared_rows(trains).items()}
    if not drop:
        return shares, Dropped({}, leakage, overlap)
    twice = repeated(hashes["train"])
    leaked = any_of([mask for (a, _), mask in shared.items() if a == "train"], twice) & ~twice
    lost = {"duplicate": int(twice.sum()), "leaked": int(leaked.sum())}
    return {**shares, "train": _within(shares["train"], ~(twice | leaked))}, Dropped(lost, leakage, overlap)


def cut_to(limit: int | None, split: str, shares: list[Share], seed: int) -> list[Share]:
    """At most `limit` rows of them all: a seeded sample."""
    rows = sum(share.distinct for share in shares)
    if limit is None or rows <= limit:
        return shares
    return _within(shares, limited(_trues(rows), limit, seed, split))


def weighted(
    shares: list[Share], weights: Mapping[str, float] | None, strategy: Strategy, limit: int | None, seed: int
) -> tuple[list[Share], int]:
    """Train by weights, at most `limit` rows, and how many rows the weights alone took; see `tasks.text.mixture`."""
    there = {share.source: share.distinct for share in shares}
    for source, count in there.items():
        if count == 0:
            raise DataError(f"the source {source} has no rows of train left", "check data.dedupe and data.split")
    whole, taken = amounts(there, weights, strategy), amounts(there, weights, strategy, limit)
    unmixed = sum(max(0, there[name] - whole[name]) for name in there)
    return [_taken(share, taken[share.source], seed) for share in shares], unmixed


def _taken(share: Share, rows: int, seed: int) -> Share:
    """`rows` of a share: a seeded sample, or whole copies and a sample."""
    times, rest = divmod(rows, share.distinct)
    sample = within(share.mask, limited(_trues(share.distinct), rest, seed, f"train/{share.source}"))
    return share._replace(mask=sample) if times == 0 else share._replace(times=times, more=sample if rest else None)


def write_split(split: str, shares: list[Share], to: Path, out: Workdir) -> int:
    """The split as parquet: one source after another, but train interleaved. Returns the rows."""
    schema = written_schema({share.source: share.read.schema for share in shares}, shares[0].labels is not None, split)
    total = sum(share.rows for share in shares)
    if split == "train" and len(shares) > 1:
        tables = _interleaved({share.source: share for share in shares}, schema)
    else:
        tables = (table for share in shares for table in share.tables(schema))
    return write_rows(tables, schema, to, lambda done: out.progress(done, total, f"{split} rows written"))


def _interleaved(shares: dict[str, Share], schema: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow as pa

    readers = {name: _Reader(share.tables(schema), schema) for name, share in shares.items()}
    for counts, order in interleaved({name: share.rows for name, share in shares.items()}, ROW_GROUP):
        yield pa.concat_tables([readers[name].take(count) for name, count in counts.items()]).take(pa.array(order))


class _Reader:
    """Tables as one stream, of which any number of rows can be taken."""

    def __init__(self, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        self._tables = regrouped(tables, schema, ROW_GROUP)
        self._held = schema.empty_table()

    def take(self, count: int) -> pa.Table:
        import pyarrow as pa

        while self._held.num_rows < count:
            self._held = pa.concat_tables([self._held, next(self._tables)])
        taken, self._held = self._held.slice(0, count), self._held.slice(count)
        return taken.combine_chunks()


def _within(shares: list[Share], keep: Mask) -> list[Share]:
    """`keep`, a mask over the rows of all shares, as the shares' own masks."""
    found, start = [], 0
    for share in shares:
        end = start + share.distinct
        found.append(share._replace(mask=within(share.mask, keep[start:end])))
        start = end
    return found


def joined(hashes: list[Hashes]) -> Hashes:
    import numpy as np

    return hashes[0] if len(hashes) == 1 else np.concatenate(hashes)


def _trues(rows: int) -> Mask:
    import numpy as np

    return np.ones(rows, dtype=bool)
