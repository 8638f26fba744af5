"""Choose which rows of the sources go into each split (train, validation, test), and write each split to a file.

A source is one data set of a mixture (`data.mix`), or the only data set (`data.source`). A split made of several
sources has their rows in the order of the sources' names. Of several rows with equal text, `dedupe` keeps the first in
this order. Rows are chosen as masks over the scratch files to which `trnflow.tasks.data.load.scratch_file` copied them.
`dedupe`, weights and `limit` drop rows of train; of these three only `limit` drops rows of validation and test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.load.labels import LabelSet
from trnflow.tasks.data.load.mixture import Strategy, amounts, interleaved
from trnflow.tasks.data.load.scratch_file import ReadSplit, common_schema, kept_rows, label_ids
from trnflow.tasks.data.load.selection import (
    all_rows,
    limited,
    made_splits,
    narrowed,
    repeated,
    repetitions,
    shared_rows,
    stratified_splits,
    union_of,
)
from trnflow.tasks.data.tables import ROW_GROUP, regrouped, write_rows
from trnflow.tasks.errors import DataError
from trnflow.tasks.sources.split_files import SPLITS
from trnflow.tasks.stage import Workdir

if TYPE_CHECKING:
    import pyarrow as pa

    from trnflow.tasks.data.load.selection import Hashes, Mask


class SourceRows(NamedTuple):
    """The rows that one source (data set) contributes to one split.

    Attributes:
        source: the source's name.
        read: the scratch file (temporary Arrow file) that holds the rows.
        labels: converts label texts to ids, or None without labels.
        mask: bool [rows of `read`], which rows are used.
        times: how often each row that `mask` picks is written.
        more: bool [rows of `read`], the rows that are written once more than `times`, or None if there are none.
    """

    source: str
    read: ReadSplit
    labels: LabelSet | None
    mask: Mask
    times: int = 1
    more: Mask | None = None

    @property
    def hashes(self) -> Hashes:
        """The hashes of the texts of the rows that this source contributes, each row once even if it is written several
        times: uint64 [distinct]."""
        return self.read.hashes[self.mask]

    @property
    def distinct(self) -> int:
        """The number of rows that this source contributes, each counted once even if it is written several times."""
        return int(self.mask.sum())

    @property
    def rows(self) -> int:
        """The number of rows that this source writes to the split, where a repeated row counts each time."""
        return self.distinct * self.times + (int(self.more.sum()) if self.more is not None else 0)

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows to write as tables with the given schema, batch by batch, repeated rows included."""
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
) -> dict[str, SourceRows]:
    """Assign all rows of a source (data set) to splits and return {split: its rows}. A split that `split` names and the
    source lacks takes its rows from the source's train split.

    Args:
        source: the source's name.
        read: {split: the source's rows}.
        labels: the source's labels with their ids, or None.
        split: {split: the fraction of train's rows that the split takes}; an entry for a split that the source already
            has is ignored.
        seed: the seed of the choice of rows.
        stratify: take the same fraction of each label's rows for a new split; no effect without labels.
    """
    train = read["train"]
    fractions = {name: share for name, share in split.items() if name not in read}
    if stratify and fractions and labels:
        masks = stratified_splits(train.hashes, label_ids(train, labels), fractions, seed)
    else:
        masks = made_splits(train.hashes, fractions, seed)
    made = {name: SourceRows(source, train, labels, mask) for name, mask in masks.items()}
    return made | {
        name: SourceRows(source, rows, labels, all_rows(rows.hashes)) for name, rows in read.items() if name != "train"
    }


def group_by_split(sources: list[dict[str, SourceRows]]) -> SplitRows:
    """Regroup the rows of several sources (data sets): return {split: the rows that each source contributes}, in the
    order train, validation, test. Splits that no source has are left out.

    sources: for each source, {split: its rows}, as `source_splits` returns them."""
    found = {name: [shares[name] for shares in sources if name in shares] for name in SPLITS}
    return {name: shares for name, shares in found.items() if shares}


class Dropped(NamedTuple):
    """Counts of two kinds: rows that were dropped while `load_data` chose rows (`rows`), and rows whose text occurs
    more than once, whether they were dropped or not (the other attributes).

    Attributes:
        rows: {reason: number of rows removed}. `deduplicated` sets "duplicate" (rows of train whose text occurs in an
            earlier row of train) and "leaked" (other rows of train whose text occurs in another split); the stage adds
            its other reasons, over all splits.
        leakage: {"train/test": number of rows of the first split whose text also occurs in the second}, for each pair
            of splits.
        overlap: {"a/b": number of train rows of source (data set) a whose text also occurs in train of source b}.
        duplicates: number of rows of train whose text occurs in an earlier row of train.
    """

    rows: Meta
    leakage: Meta
    overlap: Meta
    duplicates: int


def deduplicated(shares: SplitRows, *, drop: bool) -> tuple[SplitRows, Dropped]:
    """Count the rows of train whose text repeats an earlier row of train or occurs in another split. With `drop`, also
    leave these rows out of the returned train split; `shares` is not changed.

    shares: {split: the rows that each source (data set) contributes}. Returns two values: {split: the rows that each
    source contributes now}, and the counts, taken before the removal (`Dropped`)."""
    hashes = {name: joined([share.hashes for share in some]) for name, some in shares.items()}
    shared = shared_rows(hashes)
    leakage = {f"{a}/{b}": int(mask.sum()) for (a, b), mask in shared.items()}
    trains = {share.source: share.hashes for share in shares["train"]}
    overlap = {f"{a}/{b}": int(mask.sum()) for (a, b), mask in shared_rows(trains).items()}
    duplicates = repetitions(hashes["train"])
    if not drop:
        return shares, Dropped({}, leakage, overlap, duplicates)
    twice = repeated(hashes["train"])
    leaked = union_of([mask for (a, _), mask in shared.items() if a == "train"], twice) & ~twice
    lost = {"duplicate": duplicates, "leaked": int(leaked.sum())}
    return {**shares, "train": _narrowed(shares["train"], ~(twice | leaked))}, Dropped(
        lost, leakage, overlap, duplicates
    )


def without_texts(shares: SplitRows, texts: Hashes) -> tuple[SplitRows, int]:
    """Remove from train the rows whose text is one of the given texts, such as those of the frozen rows (the fixed test
    rows on which a recipe's models are compared). Rows of other splits are not removed.

    shares: {split: the rows of each source (data set)}; texts: uint64 [texts], the given texts' hashes (`row_hashes`).
    Returns two values: {split: the rows of each source that remain}, and the number of rows removed from train."""
    import numpy as np

    among = np.isin(joined([share.hashes for share in shares["train"]]), texts)
    return {**shares, "train": _narrowed(shares["train"], ~among)}, int(among.sum())


def sampled(limit: int | None, split: str, shares: list[SourceRows], seed: int) -> list[SourceRows]:
    """Draw a random sample of at most `limit` rows from the rows of a split, and return the sampled rows of each source
    (data set). If `limit` is None or not below the number of rows, all rows are kept.

    split, seed: together seed the sample; shares: the rows that each source contributes."""
    rows = sum(share.distinct for share in shares)
    if limit is None or rows <= limit:
        return shares
    return _narrowed(shares, limited(_trues(rows), limit, seed, split))


def weighted_train(
    shares: list[SourceRows], weights: Mapping[str, float] | None, strategy: Strategy, limit: int | None, seed: int
) -> tuple[list[SourceRows], int]:
    """Choose the rows of train by the weights of the sources (data sets), at most `limit` rows in all. A source's
    weight is its share of the rows of train, relative to the other weights.

    Args:
        shares: the rows that each source has.
        weights: {source: its weight}, or None to use all rows once.
        strategy: `data.stopping_strategy`, whether rows of small sources are repeated.
        limit: the largest number of rows in all, or None for no limit.
        seed: the seed of the samples.

    Returns two values: the chosen rows of each source, and the number of rows of train that the weights left out (not
    counting those that `limit` left out). Raises DataError for a source
    without rows.
    """
    there = {share.source: share.distinct for share in shares}
    for source, count in there.items():
        if count == 0:
            raise DataError(f"the source {source} has no rows of train left", "check data.dedupe and data.split")
    whole, taken = amounts(there, weights, strategy), amounts(there, weights, strategy, limit)
    unmixed = sum(max(0, there[name] - whole[name]) for name in there)
    return [_taken(share, taken[share.source], seed) for share in shares], unmixed


def _taken(share: SourceRows, rows: int, seed: int) -> SourceRows:
    """Return `rows` rows of a source: a random sample, or if the source has fewer rows, all of them once or several
    times plus a random sample."""
    times, rest = divmod(rows, share.distinct)
    sample = narrowed(share.mask, limited(_trues(share.distinct), rest, seed, f"train/{share.source}"))
    return share._replace(mask=sample) if times == 0 else share._replace(times=times, more=sample if rest else None)


def write_split(
    split: str, shares: list[SourceRows], nested: Collection[str], to: Path, out: Workdir
) -> tuple[int, dict[str, int]]:
    """Write the chosen rows of a split to a new parquet file. In train the rows of the sources (data sets) are
    interleaved in proportion to their numbers, in other splits one source follows another.

    Args:
        split: the split's name.
        shares: the rows of each source.
        nested: columns that are written as JSON text.
        to: the new file.
        out: shows the progress.

    Returns two values: the number of rows written, and {label name: number of rows written with this label} ({} without
    labels).
    """
    import pyarrow as pa

    labels = shares[0].labels
    schema = common_schema({share.source: share.read.schema for share in shares}, nested, labels is not None, split)
    total, counts = sum(share.rows for share in shares), Counter[int]()
    if split == "train" and len(shares) > 1:
        tables = _interleaved({share.source: share for share in shares}, schema)
    else:
        tables = (table for share in shares for table in share.tables(schema))
    if labels:
        tables = _counted(tables, counts)
    plain = pa.schema([(field.name, pa.string() if field.name in nested else field.type) for field in schema])
    done = write_rows(
        (table.cast(plain) for table in tables),
        plain,
        to,
        lambda done: out.progress(done, total, f"{split} rows written"),
    )
    return done, {name: counts[number] for number, name in enumerate(labels.names)} if labels else {}


def _counted(tables: Iterator[pa.Table], counts: Counter[int]) -> Iterator[pa.Table]:
    """Pass the tables on, and add the ids in their column `label` to `counts`."""
    import numpy as np

    for table in tables:
        ids, rows = np.unique(table.column("label").to_numpy(), return_counts=True)
        counts.update(dict(zip(ids.tolist(), rows.tolist(), strict=True)))
        yield table


def _interleaved(shares: dict[str, SourceRows], schema: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow as pa

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
        import pyarrow as pa

        while self._held.num_rows < count:
            self._held = pa.concat_tables([self._held, next(self._tables)])
        taken, self._held = self._held.slice(0, count), self._held.slice(count)
        return taken.combine_chunks()


def _narrowed(shares: list[SourceRows], keep: Mask) -> list[SourceRows]:
    """Return the sources with only the rows that `keep` picks. keep: one value for each distinct row, of all sources
    one after another."""
    found, start = [], 0
    for share in shares:
        end = start + share.distinct
        found.append(share._replace(mask=narrowed(share.mask, keep[start:end])))
        start = end
    return found


def joined(hashes: list[Hashes]) -> Hashes:
    """Concatenate arrays of row hashes (uint64). A single array is returned as it is, without a copy."""
    import numpy as np

    return hashes[0] if len(hashes) == 1 else np.concatenate(hashes)


def _trues(rows: int) -> Mask:
    import numpy as np

    return np.ones(rows, dtype=bool)
