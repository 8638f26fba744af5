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


class Part(NamedTuple):
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


Parts = dict[str, list[Part]]


def parts_of(
    source: str,
    read: Mapping[str, ReadSplit],
    labels: LabelSet | None,
    split: Mapping[str, float],
    seed: int,
    *,
    stratify: bool,
) -> dict[str, Part]:
    """A source's splits and, where it lacks them, those that `split` makes from its train."""
    train = read["train"]
    fractions = {name: part for name, part in split.items() if name not in read}
    if stratify and fractions and labels:
        masks = stratified_splits(train.hashes, label_ids(train, labels), fractions, seed)
    else:
        masks = made_splits(train.hashes, fractions, seed)
    made = {name: Part(source, train, labels, mask) for name, mask in masks.items()}
    return made | {
        name: Part(source, rows, labels, all_rows(rows.hashes)) for name, rows in read.items() if name != "train"
    }


def by_split(sources: list[dict[str, Part]]) -> Parts:
    """train, validation and test, each of those sources that have it."""
    found = {name: [parts[name] for parts in sources if name in parts] for name in SPLITS}
    return {name: parts for name, parts in found.items() if parts}


class Dropped(NamedTuple):
    """rows: {reason: rows}; leakage: {"train/test": rows of the first whose text also stands in the second}; overlap:
    {"one source/another": rows of the first's train whose text also stands in the second's}."""

    rows: Meta
    leakage: Meta
    overlap: Meta


def deduped(parts: Parts, *, drop: bool) -> tuple[Parts, Dropped]:
    """Counts texts that splits share; with `drop` takes rows of train that repeat an earlier one, or stand in another split."""
    hashes = {name: joined([part.hashes for part in some]) for name, some in parts.items()}
    shared = shared_rows(hashes)
    leakage = {f"{a}/{b}": int(mask.sum()) for (a, b), mask in shared.items()}
    trains = {part.source: part.hashes for part in parts["train"]}
    overlap = {f"{a}/{b}": int(mask.sum()) for (a, b), mask in shared_rows(trains).items()}
    if not drop:
        return parts, Dropped({}, leakage, overlap)
    twice = repeated(hashes["train"])
    leaked = any_of([mask for (a, _), mask in shared.items() if a == "train"], twice) & ~twice
    lost = {"duplicate": int(twice.sum()), "leaked": int(leaked.sum())}
    return {**parts, "train": _within(parts["train"], ~(twice | leaked))}, Dropped(lost, leakage, overlap)


def cut_to(limit: int | None, split: str, parts: list[Part], seed: int) -> list[Part]:
    """At most `limit` rows of them all: a seeded sample."""
    rows = sum(part.distinct for part in parts)
    if limit is None or rows <= limit:
        return parts
    return _within(parts, limited(_trues(rows), limit, seed, split))


def weighted(
    parts: list[Part], weights: Mapping[str, float] | None, strategy: Strategy, limit: int | None, seed: int
) -> tuple[list[Part], int]:
    """Train by weights, at most `limit` rows, and how many rows the weights alone took; see `tasks.text.mixture`."""
    there = {part.source: part.distinct for part in parts}
    for source, count in there.items():
        if count == 0:
            raise DataError(f"the source {source} has no rows of train left", "check data.dedupe and data.split")
    whole, taken = amounts(there, weights, strategy), amounts(there, weights, strategy, limit)
    unmixed = sum(max(0, there[name] - whole[name]) for name in there)
    return [_taken(part, taken[part.source], seed) for part in parts], unmixed


def _taken(part: Part, rows: int, seed: int) -> Part:
    """`rows` of a part: a seeded sample, or whole copies and a sample."""
    times, rest = divmod(rows, part.distinct)
    sample = within(part.mask, limited(_trues(part.distinct), rest, seed, f"train/{part.source}"))
    return part._replace(mask=sample) if times == 0 else part._replace(times=times, more=sample if rest else None)


def write_split(split: str, parts: list[Part], to: Path, out: Workdir) -> int:
    """The split as parquet: one source after another, but train interleaved. Returns the rows."""
    schema = written_schema({part.source: part.read.schema for part in parts}, parts[0].labels is not None, split)
    total = sum(part.rows for part in parts)
    if split == "train" and len(parts) > 1:
        tables = _interleaved({part.source: part for part in parts}, schema)
    else:
        tables = (table for part in parts for table in part.tables(schema))
    return write_rows(tables, schema, to, lambda done: out.progress(done, total, f"{split} rows written"))


def _interleaved(parts: dict[str, Part], schema: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow as pa

    readers = {name: _Reader(part.tables(schema), schema) for name, part in parts.items()}
    for counts, order in interleaved({name: part.rows for name, part in parts.items()}, ROW_GROUP):
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


def _within(parts: list[Part], keep: Mask) -> list[Part]:
    """`keep`, a mask over the rows of all parts, as the parts' own masks."""
    found, start = [], 0
    for part in parts:
        end = start + part.distinct
        found.append(part._replace(mask=within(part.mask, keep[start:end])))
        start = end
    return found


def joined(hashes: list[Hashes]) -> Hashes:
    import numpy as np

    return hashes[0] if len(hashes) == 1 else np.concatenate(hashes)


def _trues(rows: int) -> Mask:
    import numpy as np

    return np.ones(rows, dtype=bool)
