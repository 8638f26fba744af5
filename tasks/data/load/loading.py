"""Read all rows of `load_data`'s sources, choose those of each split, and write them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.data.load.asides import kept_aside
from trnflow.tasks.data.load.columns import Columns, choose_columns, renumbered_classes
from trnflow.tasks.data.load.config import NO_TEST_SPLIT, DataConfig, SourceConfig, errors_name_source
from trnflow.tasks.data.load.labels import LabelSet, common_names, label_set
from trnflow.tasks.data.load.readers import RowReader, open_file
from trnflow.tasks.data.load.scratch_file import ReadSplit, hashed_columns, nested_columns, read_split, tell_remarks
from trnflow.tasks.data.load.selection import Hashes, row_hashes
from trnflow.tasks.data.load.split_rows import (
    Dropped,
    SplitRows,
    deduplicated,
    group_by_split,
    joined,
    sampled,
    source_splits,
    weighted_train,
    without_texts,
    write_split,
)
from trnflow.tasks.data.load.streams import MB, max_cell_mb
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.keys.hash_cache import stamp
from trnflow.tasks.kinds.label_names import alike, say_the_same
from trnflow.tasks.sources.data_files import max_growth
from trnflow.tasks.sources.split_files import SPLITS
from trnflow.tasks.stage import Workdir

if TYPE_CHECKING:
    from trnflow.tasks.metadata import FrozenMeta, RowsMeta

LONG_ROW = 100_000
"""Bytes from which on the longest row is named."""
FEW_LABELS = 6
"""Labels whose counts are printed: all, or of more those with the most rows."""
MOST_SHOWN = 20
"""Labels that are equal numbers, of which so many are printed."""


def load_splits(config: DataConfig, source: Source, frozen: Input[FrozenMeta] | None, out: Workdir) -> RowsMeta:
    """Do the work of `load_data`, and return its metadata."""
    max_cell_mb.set(config.max_cell_mb)
    max_growth.set(config.max_growth)
    read = _read(config, source, out)
    _check_unchanged(source)
    names, sets = _label_sets(config, read)
    there = {split for source in read.values() for split in source.splits}
    made = config.shares(there)
    if config.made(there):
        out.info(NO_TEST_SPLIT)
    shares = group_by_split(
        [
            source_splits(
                name, splits, sets[name], made, config.split_seed, stratify=config.stratify, by=config.split_by
            )
            for name, (_, splits, _) in read.items()
        ]
    )
    every = [split for source in read.values() for split in source.splits.values()]
    lost = sum((split.dropped for split in every), Counter[str]())
    if frozen is not None:
        shares, lost["frozen"] = without_texts(shares, _frozen_hashes(frozen, next(iter(read.values())).columns))
    shares, dropped = _choose_rows(config, shares, lost)
    longest = max(split.longest for split in every)
    if longest.size >= LONG_ROW:
        out.info(f"longest row: {longest.place}, {longest.size / MB:.3g} MB")
    _report_rows(config, shares, dropped, out)
    nested = nested_columns(split.schema for split in every)
    try:
        written = {split: write_split(split, some, nested, out) for split, some in shares.items()}
    finally:
        _check_unchanged(source)  # Parquet and Arrow are read a second time
    rows = {split: count for split, (count, _) in written.items()}
    counts = {split: count for split, (_, count) in written.items()}
    if names:
        _report_labels(names, counts, out)
        for labels in filter(None, sets.values()):
            _report_equal_numbers(labels, out)
    meta: RowsMeta = {
        "splits": rows,
        "columns": written_columns([source.columns for source in read.values()]),
        "text": list(config.texts),
        "labels": names,
        "dropped": dropped.rows,
        "duplicates": dropped.duplicates,
        "leakage": dropped.leakage,
        "metrics": {f"{name}_rows": count for name, count in rows.items()},
    }
    if made:
        meta["made"] = sorted(made)
    if names:
        meta["label_counts"] = counts
    if nested:
        meta["nested"] = nested
    if others := list(dict.fromkeys(name for source in read.values() for name in source.left_out)):
        meta["left_out"] = others
    if config.mix:
        meta["sources"] = {split: {share.source: share.rows for share in some} for split, some in shares.items()}
        meta["overlap"] = dropped.overlap
    return meta


class ReadSource(NamedTuple):
    """A source whose rows were read into scratch files."""

    columns: Columns
    splits: dict[str, ReadSplit]
    left_out: list[str]


def open_source(location: Meta) -> dict[str, list[RowReader]]:
    """Open a resolved source's files: {split: readers}. location: of a mixture that of one source."""
    if "builtin" in location:
        from trnflow.tasks.data.load.corpus import corpus_splits

        return {split: [rows] for split, rows in corpus_splits(location["view"]).items()}
    if "hub" in location:
        from trnflow.tasks.data.load.hub_rows import hub_splits

        return hub_splits(location)
    opened: dict[str, list[RowReader]] = {}
    for file in location["files"]:
        opened.setdefault(file["split"], []).append(open_file(Path(file["path"]), file["format"], file["name"]))
    return opened


def _read(config: DataConfig, source: Source, out: Workdir) -> dict[str, ReadSource]:
    """Read every source into scratch files. Returns {name in `mix`: the source}."""
    out.scratch.mkdir(parents=True, exist_ok=True)
    read = {}
    for number, (name, settings) in enumerate(config.sources().items()):
        with errors_name_source(name):
            opened = open_source(source.location["mix"][name] if name else source.location)
            columns = chosen_columns(config, settings, opened)
            tell_remarks([*renumbered_classes([rows for some in opened.values() for rows in some], columns)], out)
            splits, others = {}, left_out(columns, opened)
            asides = kept_aside(others, [rows for some in opened.values() for rows in some])
            for split, files in opened.items():
                path = out.scratch / f"{number}.{split}.arrow"
                splits[split] = read_split(split, files, columns, config.nulls, path, out, asides)
            read[name] = ReadSource(columns, splits, others)
    return read


def chosen_columns(config: DataConfig, settings: SourceConfig, opened: dict[str, list[RowReader]]) -> Columns:
    for split, files in opened.items():
        if not any(rows.schema.names for rows in files):
            raise DataError(
                f"the split {split} is empty: {files[0].name} holds no rows", "give it rows, or leave it out"
            )
    files = [rows for some in opened.values() for rows in some]
    return choose_columns(files, config.texts, settings.label, settings.columns, settings.labels or ())


def left_out(columns: Columns, opened: dict[str, list[RowReader]]) -> list[str]:
    """Return the columns of a source's files that are not read."""
    names = dict.fromkeys(name for files in opened.values() for rows in files for name in rows.schema.names)
    read = {*columns.theirs}
    return [name for name in names if name not in read]


def written_columns(sources: list[Columns]) -> list[str]:
    """Return the names of the columns to write, each once, the label last."""
    kept = dict.fromkeys(ours for columns in sources for ours, _ in columns.kept)
    return [*kept, *(["label"] if sources[0].label else [])]


def _frozen_hashes(frozen: Input[FrozenMeta], columns: Columns) -> Hashes:
    """Hash frozen rows as rows that are read. Raises DataError when they lack a column."""
    names = hashed_columns(columns)
    missing = [name for name in names if name not in frozen.meta["columns"]]
    if missing:
        raise DataError(
            f"the frozen rows have no column {missing[0]}, so that training rows can't be compared with them",
            "`trnflow freeze` the present data",
        )
    file = pq.ParquetFile(frozen.path / f"{frozen.meta['split']}.parquet", pre_buffer=False)
    hashes = [row_hashes(batch.column(name) for name in names) for batch in file.iter_batches(columns=list(names))]
    return joined(hashes)


def _check_unchanged(source: Source) -> None:
    """Raise DataError when a file changed since its digest was taken."""
    for location in source.location.get("mix", {"": source.location}).values():
        for file in location.get("files", ()):
            looked_at = [place for place in (file, file.get("zip", {})) if "stamp" in place]
            # the rows may not be those that the key names
            if any(stamp(place["path"]) != place["stamp"] for place in looked_at):
                raise DataError(f"{file['name']} changed while the run was reading it", "run again")


def _label_sets(config: DataConfig, read: dict[str, ReadSource]) -> tuple[list[str] | None, dict[str, LabelSet | None]]:
    """Return (label names by id, {source: its labels}), None without labels."""
    own = {}
    for name, settings in config.sources().items():
        with errors_name_source(name):
            own[name] = _label_set(settings, read[name].columns, read[name].splits)
    labelled = {name: labels for name, labels in own.items() if labels}
    if not labelled:
        return None, own
    if len(labelled) < len(own):
        without = next(name for name in own if name not in labelled)
        raise ConfigError(
            f"data.mix.{without} has no label, and {next(iter(labelled))} has", f"set data.mix.{without}.label"
        )
    names = common_names(
        {name: labels.names for name, labels in labelled.items()}, config.labels if config.mix else None
    )
    return names, {name: labels.renumbered(names) for name, labels in labelled.items()}


def _label_set(config: SourceConfig, columns: Columns, read: dict[str, ReadSplit]) -> LabelSet | None:
    if columns.label is None:
        return None
    if columns.rule and config.labels and len(config.labels) != 2:
        raise ConfigError(
            f"data.labels: a rule makes two labels, not {len(config.labels)}", "name the false, then the true"
        )
    labels = label_set(read["train"].seen, config.labels, columns.classes, columns.rule)
    return labels.of_splits(rows.seen for rows in read.values())


def _choose_rows(config: DataConfig, shares: SplitRows, lost: Counter[str]) -> tuple[SplitRows, Dropped]:
    """Apply `dedupe`, weights and `limit`; return the kept rows and the counts of all others. lost: dropped by reading."""
    shares, dropped = deduplicated(shares, drop=config.dedupe)
    given = config.limit
    limits = {name: given.get(name) if isinstance(given, dict) else given for name in SPLITS}  # type: ignore[call-overload]
    before = sum(share.distinct for some in shares.values() for share in some)
    rows = {**lost, **dropped.rows}
    if config.mix:
        train, unmixed = weighted_train(
            shares["train"], config.weights, config.stopping_strategy, limits["train"], config.shuffle_seed
        )
        shares, limits["train"] = {**shares, "train": train}, None
        rows, before = {**rows, "mix": unmixed}, before - unmixed
    shares = {name: sampled(limits[name], name, some, config.shuffle_seed) for name, some in shares.items()}
    rows["limit"] = before - sum(share.distinct for some in shares.values() for share in some)
    for name, some in shares.items():
        if not any(share.distinct for share in some):
            texts = {digest for some in shares.values() for share in some for digest in np.unique(share.hashes)[:2]}
            by = config.split_by
            together = f"rows of one {by} (data.split_by)" if by else "equal texts"
            if len(texts) == 1:
                check = (
                    "name another column in data.split_by"
                    if by
                    else "check data.text (`trnflow preview RECIPE` shows rows)"
                )
                raise DataError(
                    f"the split {name} is empty: all rows have the same {by or 'text'}, and {together} stay in one split",
                    f"{check}, or give more rows",
                )
            shared = ", and data.stratify: it shares out each label by itself, and one of few rows gives none"
            raise DataError(
                f"the split {name} is empty after splitting and dropping; {together} stay in one split",
                f"check data.split and data.dedupe{shared if config.stratify else ''}",
            )
    return shares, dropped._replace(rows={reason: count for reason, count in rows.items() if count})


def _report_rows(config: DataConfig, shares: SplitRows, dropped: Dropped, out: Workdir) -> None:
    shared = {pair: count for pair, count in dropped.leakage.items() if count}
    what = "text" if config.texts else "row"  # without a named text, whole rows are compared
    later = [setting for setting in ("mix", "limit") if dropped.rows.get(setting)]
    of = f" (of all rows, before data.{' and data.'.join(later)})" if later else ""
    if shared and not config.dedupe:
        listed = ", ".join(f"{count} of {pair.replace('/', ' also in ')}" for pair, count in shared.items())
        out.warn(f"{what}s shared by splits{of}: {listed}; data.dedupe=true drops those of train")
    if dropped.duplicates and not config.dedupe:
        out.warn(f"rows of train that repeat an earlier {what}{of}: {dropped.duplicates}; data.dedupe=true drops them")
    if dropped.contradictory:
        kept = "the first row of each is kept" if config.dedupe else "a model can learn one of them at most"
        out.warn(f"{what}s of train that stand with several labels{of}: {dropped.contradictory}; {kept}")
    if dropped.rows:
        out.info("rows dropped: " + ", ".join(f"{count} {reason}" for reason, count in dropped.rows.items()))
    if config.mix:
        total = sum(share.rows for share in shares["train"])
        out.info(
            "train is " + ", ".join(f"{p.rows:,} rows of {p.source} ({p.rows / total:.1%})" for p in shares["train"])
        )
        again = [f"{p.source} {p.rows / p.distinct:.1f} times" for p in shares["train"] if p.rows > p.distinct]
        if again:
            out.info(f"rows repeated: {', '.join(again)}")


def _report_labels(names: list[str], counts: dict[str, dict[str, int]], out: Workdir) -> None:
    """Print the label counts of train, and warn of labels that look alike."""
    rows_of, total = counts["train"], sum(counts["train"].values())
    shown = [*rows_of] if len(rows_of) <= FEW_LABELS else sorted(rows_of, key=lambda name: -rows_of[name])[:FEW_LABELS]
    some = ", ".join(f"{name} {rows_of[name]:,} ({rows_of[name] / total:.1%})" for name in shown)
    if len(shown) < len(rows_of):
        least = min(rows_of, key=lambda name: rows_of[name])
        is_even = rows_of[least] == rows_of[shown[0]]
        some = f"each {rows_of[least]:,}" if is_even else f"most rows: {some}; fewest: {least} {rows_of[least]:,}"
        some = f"{len(rows_of):,}; {some}"
    out.info(f"labels of train: {some}")
    for remark in (*alike(names), *say_the_same(names)):
        out.warn(remark)


def _report_equal_numbers(labels: LabelSet, out: Workdir) -> None:
    if equal := [f"{text} as {name}" for text, name in labels.equal_numbers.items()]:
        out.info(f"labels that are equal numbers count as one: {', '.join(equal[:MOST_SHOWN])}")
