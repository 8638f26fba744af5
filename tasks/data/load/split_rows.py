"""Choose which rows of the sources go into each split, and write the splits.

`dedupe`, weights and `limit` drop rows of train; only `limit` drops others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from trnflow.tasks.artifact import ASIDE
from trnflow.tasks.data.load.asides import aside_schema, split_off, unmarked
from trnflow.tasks.data.load.config import Strategy
from trnflow.tasks.data.load.labels import LabelSet
from trnflow.tasks.data.load.mixture import amounts, interleaved
from trnflow.tasks.data.load.scratch_file import (
    ReadSplit,
    column_hashes,
    common_schema,
    copied_rows,
    kept_rows,
    label_ids,
    read_batches,
)
from trnflow.tasks.data.load.selection import (
    Hashes,
    Mask,
    limited,
    made_splits,
    narrowed,
    repeated,
    shared_rows,
    stratified_splits,
)
from trnflow.tasks.data.tables import ROW_GROUP, regrouped, write_rows
from trnflow.tasks.errors import DataError
from trnflow.tasks.sources.split_files import SPLITS
from trnflow.tasks.stage import Workdir

if TYPE_CHECKING:
    from trnflow.tasks.metadata import Counts


class SourceRows(NamedTuple):
    """The rows that a source gives to a split.

    mask: bool [rows of `read`]; times: how often each is written; more: bool [rows of `read`], written once more, or None.
    """

    source: str
    read: ReadSplit
    labels: LabelSet | None
    mask: Mask
    times: int = 1
    more: Mask | None = None

    @property
    def hashes(self) -> Hashes:
        """uint64 [distinct], of the rows that this source gives, each once."""
        return self.read.hashes[self.mask]

    @property
    def distinct(self) -> int:
        """The number of rows, each once."""
        return int(self.mask.sum())

    @property
    def rows(self) -> int:
        """The number of rows written, repetitions included."""
        return self.distinct * self.times + (int(self.more.sum()) if self.more is not None else 0)

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows to write as tables, repetitions included."""
        for keep in [self.mask] * self.times + ([self.more] if self.more is not None else []):
            yield from kept_rows(self.read, keep, self.labels, schema)


SplitRows = dict[str, list[SourceRows]]
"""{split: the rows that each source contributes to it}."""


def source_splits(
    source: str,
    read: Mapping[str, ReadSplit],
    labels: LabelSet | None,
    split: Mapping[str, float],
    seed: int,
    *,
    stratify: bool,
    by: str | None = None,
) -> dict[str, SourceRows]:
    """Assign a source's rows to splits; those of `split` that the source lacks are taken from train. by: the column whose
    values stay together."""
    train = read["train"]
    fractions = {name: share for name, share in split.items() if name not in read}
    if stratify and fractions and labels:
        masks = stratified_splits(
            train.hashes, label_ids(train, labels, np.ones(len(train.hashes), dtype=bool)), fractions, seed
        )
    else:
        masks = made_splits(column_hashes(train, by) if by and fractions else train.hashes, fractions, seed)
    splits = {name: SourceRows(source, train, labels, mask) for name, mask in masks.items()}
    return splits | {
        name: SourceRows(source, rows, labels, np.ones(len(rows.hashes), dtype=bool))
        for name, rows in read.items()
        if name != "train"
    }


def group_by_split(sources: list[dict[str, SourceRows]]) -> SplitRows:
    """Regroup {split: rows} of several sources by split, in the order train, validation, test."""
    grouped = {name: [shares[name] for shares in sources if name in shares] for name in SPLITS}
    return {name: shares for name, shares in grouped.items() if shares}


class Dropped(NamedTuple):
    """Counts of rows: `rows` by reason, the others as in the metadata of `load_data`. contradictory: texts of train with
    several labels."""

    rows: Counts
    leakage: Counts
    overlap: Counts
    duplicates: int
    contradictory: int


def deduplicated(shares: SplitRows, *, drop: bool) -> tuple[SplitRows, Dropped]:
    """Count the train rows whose text repeats or leaks; with `drop` leave them out."""
    hashes = {name: joined([share.hashes for share in some]) for name, some in shares.items()}
    shared = shared_rows(hashes)
    leakage = {f"{a}/{b}": int(mask.sum()) for (a, b), mask in shared.items()}
    trains = {share.source: share.hashes for share in shares["train"]}
    overlap = {f"{a}/{b}": int(mask.sum()) for (a, b), mask in shared_rows(trains).items()}
    ordered = np.sort(hashes["train"])  # takes 8 bytes a row, `repeated` 40
    duplicates = int((ordered[1:] == ordered[:-1]).sum())
    contradictory = _contradictory(shares["train"], hashes["train"]) if duplicates else 0
    if not drop:
        return shares, Dropped({}, leakage, overlap, duplicates, contradictory)
    twice = repeated(hashes["train"])
    kept = np.logical_not(np.logical_or.reduce([twice, *(mask for (a, _), mask in shared.items() if a == "train")]))
    lost = {"duplicate": duplicates, "leaked": len(kept) - duplicates - int(kept.sum())}
    shares = {**shares, "train": _narrowed(shares["train"], kept)}
    return shares, Dropped(lost, leakage, overlap, duplicates, contradictory)


def _contradictory(shares: list[SourceRows], hashes: Hashes) -> int:
    """Return the number of texts that stand with several labels. hashes: of the rows of all shares."""
    if not any(share.labels for share in shares):
        return 0
    ordered = np.sort(hashes)
    again = np.isin(hashes, ordered[1:][ordered[1:] == ordered[:-1]])  # few rows are read once more
    parts = np.split(again, np.cumsum([share.distinct for share in shares])[:-1])
    ids = [
        label_ids(share.read, share.labels, narrowed(share.mask, part))
        for share, part in zip(shares, parts, strict=True)
        if share.labels
    ]
    pairs = np.unique(np.stack([hashes[again].view(np.int64), np.concatenate(ids)], axis=1), axis=0)
    return int((np.unique(pairs[:, 0], return_counts=True)[1] > 1).sum())


def without_texts(shares: SplitRows, texts: Hashes) -> tuple[SplitRows, int]:
    """Remove the rows of train with these texts' hashes; return the rest and the number removed."""
    among = np.isin(joined([share.hashes for share in shares["train"]]), texts)
    return {**shares, "train": _narrowed(shares["train"], ~among)}, int(among.sum())


def sampled(limit: int | None, split: str, shares: list[SourceRows], seed: int) -> list[SourceRows]:
    """Draw at most `limit` rows of a split; all if `limit` is None or not below."""
    rows = sum(share.distinct for share in shares)
    if limit is None or rows <= limit:
        return shares
    return _narrowed(shares, limited(np.ones(rows, dtype=bool), limit, seed, split))


def weighted_train(
    shares: list[SourceRows], weights: Mapping[str, float] | None, strategy: Strategy, limit: int | None, seed: int
) -> tuple[list[SourceRows], int]:
    """Choose train's rows by weights; return them and the number of rows left out. Raises DataError."""
    there = {share.source: share.distinct for share in shares}
    for source, count in there.items():
        if count == 0:
            raise DataError(f"the source {source} has no rows of train left", "check data.dedupe and data.split")
    whole, taken = amounts(there, weights, strategy), amounts(there, weights, strategy, limit)
    unmixed = sum(max(0, there[name] - whole[name]) for name in there)
    return [_taken(share, taken[share.source], seed) for share in shares], unmixed


def _taken(share: SourceRows, rows: int, seed: int) -> SourceRows:
    """Return `rows` rows of a source: a sample, or all as often as needed plus a sample."""
    times, rest = divmod(rows, share.distinct)
    every = np.ones(share.distinct, dtype=bool)
    sample = narrowed(share.mask, limited(every, rest, seed, f"train/{share.source}"))
    return share._replace(mask=sample) if times == 0 else share._replace(times=times, more=sample if rest else None)


def write_split(
    split: str, shares: list[SourceRows], nested: Collection[str], out: Workdir
) -> tuple[int, dict[str, int]]:
    """Write a split to `<split>.parquet`, and what is beside its rows to `aside/<split>.parquet`; return its rows and {label
    name: rows}. nested: columns of JSON text."""
    labels = shares[0].labels
    schema = common_schema({share.source: share.read.schema for share in shares}, nested, labels is not None, split)
    asides = aside_schema(dict.fromkeys(name for share in shares for name in share.read.asides))
    placed = pa.schema([*schema, *asides])
    total, counts = sum(share.rows for share in shares), Counter[int]()
    if split == "train" and len(shares) > 1:
        # train in proportion, else one source after another
        tables = _interleaved({share.source: share for share in shares}, placed)
    else:
        tables = (table for share in shares for table in share.tables(placed))
    if labels:
        tables = _counted(tables, counts)
    # nested values travel as JSON text
    plain = pa.schema([(field.name, pa.string() if field.name in nested else field.type) for field in schema])
    beside = out.scratch / f"{split}.beside.arrow"
    with copied_rows(beside, unmarked(asides)) as copy:
        cast = (table.cast(plain) for table in split_off(tables, copy))
        written = partial(out.progress, total=total, unit=f"{split} rows written")
        rows = write_rows(cast, plain, out.path / f"{split}.parquet", written)
    apart = (pa.Table.from_batches([batch]) for batch in read_batches(beside))
    (out.path / ASIDE).mkdir(exist_ok=True)
    write_rows(apart, unmarked(asides), out.path / f"{ASIDE}{split}.parquet", lambda count: None)
    return rows, {name: counts[number] for number, name in enumerate(labels.names)} if labels else {}


def _counted(tables: Iterator[pa.Table], counts: Counter[int]) -> Iterator[pa.Table]:
    """Pass the tables on, and add the ids of `label` to `counts`."""
    for table in tables:
        ids, rows = np.unique(table.column("label").to_numpy(), return_counts=True)
        counts.update(dict(zip(ids.tolist(), rows.tolist(), strict=True)))
        yield table


def _interleaved(shares: dict[str, SourceRows], schema: pa.Schema) -> Iterator[pa.Table]:
    readers = {name: _Reader(share.tables(schema), schema) for name, share in shares.items()}
    for counts, order in interleaved({name: share.rows for name, share in shares.items()}, ROW_GROUP):
        yield pa.concat_tables([readers[name].take(count) for name, count in counts.items()]).take(pa.array(order))


class _Reader:
    """Reads any number of rows at a time from a stream of tables."""

    def __init__(self, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        self._tables = regrouped(tables, schema, ROW_GROUP)
        self._held = schema.empty_table()

    def take(self, count: int) -> pa.Table:
        """Return the next `count` rows. The stream must have that many left."""
        while self._held.num_rows < count:
            self._held = pa.concat_tables([self._held, next(self._tables)])
        taken, self._held = self._held.slice(0, count), self._held.slice(count)
        return taken.combine_chunks()


def _narrowed(shares: list[SourceRows], keep: Mask) -> list[SourceRows]:
    """Return the sources with the rows that `keep` picks, of the distinct rows of all, one after another."""
    shares_kept, start = [], 0
    for share in shares:
        end = start + share.distinct
        shares_kept.append(share._replace(mask=narrowed(share.mask, keep[start:end])))
        start = end
    return shares_kept


def joined(hashes: list[Hashes]) -> Hashes:
    """Concatenate hashes; a single array is returned without a copy."""
    return hashes[0] if len(hashes) == 1 else np.concatenate(hashes)
