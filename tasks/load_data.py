"""Load a dataset's splits into parquet: the columns that are needed, labels as ids, nothing dropped unseen.

Rows stream through a scratch file in batches, so memory is bounded by a batch and 8 bytes a row (for a moment some 50 more, with
`dedupe` or `stratify`). csv, json lines and parquet of equal content give equal bytes. Rows of validation and test are
dropped by `limit` and by `nulls: drop` alone; rows of train also by `dedupe` and by the weights of a mixture. All are
counted, and texts that splits share are counted in any case.
Fails with DataError naming file and row (missing text, label outside the set, bad row), ConfigError for a setting.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tasks.artifact import Meta, Source
from tasks.errors import ConfigError, DataError, TrnflowError
from tasks.memo import stamp
from tasks.resolve import Resolver
from tasks.stage import Workdir, stage
from tasks.text.columns import Columns, choose_columns
from tasks.text.config import DataConfig as DataConfig
from tasks.text.config import SourceConfig
from tasks.text.labels import LabelSet, common_names, label_set
from tasks.text.readers import Rows, open_file
from tasks.text.scratch import ReadSplit, read_split
from tasks.text.shares import Dropped, Shares, by_split, cut_to, deduped, shares_of, weighted, write_split
from tasks.text.sources import SPLITS, Wanted, resolve_source


def data_source(config: DataConfig, resolver: Resolver) -> Source:
    """`data.source`, pinned to exact bytes; local files and the corpus without the network. Of a mixture `mix`: {name: the
    identity of each}. ConfigError, DataError."""
    found = {}
    for name, one in config.sources().items():
        with _speaking_of(name):
            found[name] = _pinned(one, resolver)
    if config.mix is None:
        return found[""]
    identity, location = (
        {name: getattr(one, part) for name, one in found.items()} for part in ("identity", "location")
    )
    note = "; ".join(f"{name}: {one.note}" for name, one in found.items() if one.note)
    return Source("data", {"mix": identity}, {"mix": location}, note)


def _pinned(config: SourceConfig, resolver: Resolver) -> Source:
    assert config.source is not None
    if config.source.startswith("builtin:"):
        from tasks.corpus import corpus_source

        return corpus_source(config.source, config.name, resolver)
    wanted = Wanted(config.format, {str(ours): theirs for ours, theirs in config.splits.items()})
    return resolve_source(config.source, config.name, config.revision, wanted, resolver)


@contextlib.contextmanager
def _speaking_of(name: str) -> Iterator[None]:
    """Within it errors name the settings of that source of the mixture."""
    try:
        yield
    except TrnflowError as error:
        own = re.compile(rf"\bdata\.({'|'.join(SourceConfig.model_fields)})\b") if name else None
        if own:
            error.message, error.fix = (own.sub(rf"data.mix.{name}.\1", text) for text in (error.message, error.fix))
            if f"data.mix.{name}" not in error.message:
                error.message = f"data.mix.{name}: {error.message}"
            error.args = (error.message,)
        raise


@stage(kind="rows")
def load_data(config: DataConfig, source: Source, out: Workdir) -> Meta:
    """source -> `<split>.parquet` with the kept columns and, where there is a label, `label: int64`.

    meta: splits {name: rows}, columns, text (the text columns), labels (names by id, or null), dropped {reason: rows},
    leakage {"train/test": rows of the first whose text stands in the second}; of a mixture also sources {split: {source:
    rows}} and overlap {"one source/another": rows of the first's train whose text stands in the second's}."""
    read = _read(config, source, out)
    _unchanged(source)
    names, sets = _label_sets(config, read)
    shares = by_split(
        [
            shares_of(one, splits, sets[one], _split(config), config.split_seed, stratify=config.stratify)
            for one, (_, splits) in read.items()
        ]
    )
    lost = sum((split.dropped for _, splits in read.values() for split in splits.values()), Counter[str]())
    shares, dropped = _drop(config, shares, lost)
    _report(config, shares, dropped, out)
    rows = {split: write_split(split, some, out.path / f"{split}.parquet", out) for split, some in shares.items()}
    mixed = {
        "sources": {split: {share.source: share.rows for share in some} for split, some in shares.items()},
        "overlap": dropped.overlap,
    }
    return {
        "splits": rows,
        "columns": _columns([columns for columns, _ in read.values()]),
        "text": list(config.texts),
        "labels": names,
        "dropped": dropped.rows,
        "leakage": dropped.leakage,
        "metrics": {f"{name}_rows": count for name, count in rows.items()},
        **(mixed if config.mix else {}),
    }


class Opened(NamedTuple):
    """A source as it was read: its columns, and its splits in scratch."""

    columns: Columns
    splits: dict[str, ReadSplit]


def open_source(location: Meta) -> dict[str, list[Rows]]:
    """The splits' rows, opened but not read: of files, of a hub dataset, of the built-in corpus. location: a `Source`'s."""
    if "builtin" in location:
        from tasks.corpus import corpus_splits

        return {split: [rows] for split, rows in corpus_splits(location["view"]).items()}
    if "hub" in location:
        from tasks.text.hub import hub_splits

        return {split: [rows] for split, rows in hub_splits(location).items()}
    opened: dict[str, list[Rows]] = {}
    for file in location["files"]:
        opened.setdefault(file["split"], []).append(open_file(Path(file["path"]), file["format"], file["name"]))
    return opened


def _read(config: DataConfig, source: Source, out: Workdir) -> dict[str, Opened]:
    """Every source's splits in scratch."""
    out.scratch.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, one in config.sources().items():
        with _speaking_of(name):
            found[name] = _read_one(name, one, config, source, out)
    return found


def _read_one(name: str, one: SourceConfig, config: DataConfig, source: Source, out: Workdir) -> Opened:
    """A source's splits, under the columns that the first one fixes."""
    opened = open_source(source.location["mix"][name] if name else source.location)
    for split, files in opened.items():
        if not any(rows.schema.names for rows in files):
            raise DataError(
                f"the split {split} is empty: {files[0].name} holds no rows", "give it rows, or leave it out"
            )
    columns = choose_columns(next(iter(opened.values()))[0], config.texts, one.label, one.columns)
    number = [*config.sources()].index(name)
    paths = {split: out.scratch / f"{number}.{split}.arrow" for split in opened}
    return Opened(
        columns,
        {split: read_split(split, files, columns, config.nulls, paths[split], out) for split, files in opened.items()},
    )


def _unchanged(source: Source) -> None:
    """DataError when a file changed after its digest was taken: what was read is not what the key says."""
    for location in source.location.get("mix", {"": source.location}).values():
        for file in location.get("files", ()):
            looked_at = [one for one in (file, file.get("zip", {})) if "stamp" in one]
            if any(stamp(one["path"]) != one["stamp"] for one in looked_at):
                raise DataError(f"{file['name']} changed while the run was reading it", "run again")


def _label_sets(config: DataConfig, read: dict[str, Opened]) -> tuple[list[str] | None, dict[str, LabelSet | None]]:
    """(names by id, each source's set): what its train, or the recipe, fixes; the labels of all its splits are in it."""
    own = {}
    for name, one in config.sources().items():
        with _speaking_of(name):
            own[name] = _label_set(one, *read[name])
    found = {name: labels for name, labels in own.items() if labels}
    if not found:
        return None, own
    if len(found) < len(own):
        without = next(name for name in own if name not in found)
        raise ConfigError(
            f"data.mix.{without} has no label, and {next(iter(found))} has", f"set data.mix.{without}.label"
        )
    names = common_names({name: labels.names for name, labels in found.items()}, config.labels if config.mix else None)
    return names, {name: labels.under(names) for name, labels in found.items()}


def _label_set(config: SourceConfig, columns: Columns, read: dict[str, ReadSplit]) -> LabelSet | None:
    if columns.label is None:
        return None
    if columns.rule and config.labels and len(config.labels) != 2:
        raise ConfigError(
            f"data.labels: a rule makes two labels, not {len(config.labels)}", "name the false, then the true"
        )
    labels = label_set(read["train"].seen, config.labels, columns.classes, columns.rule)
    for rows in read.values():
        labels.check(rows.seen)
    return labels


def _split(config: DataConfig) -> dict[str, float]:
    return {str(name): share for name, share in config.split.items()}


def _drop(config: DataConfig, shares: Shares, lost: Counter[str]) -> tuple[Shares, Dropped]:
    """What stays, and what does not. lost: rows that reading dropped."""
    shares, dropped = deduped(shares, drop=config.dedupe)
    given = config.limit
    limits = {name: given.get(name) if isinstance(given, dict) else given for name in SPLITS}  # type: ignore[call-overload]
    before = sum(share.distinct for some in shares.values() for share in some)
    rows = {**lost, **dropped.rows}
    if config.mix:
        train, unmixed = weighted(
            shares["train"], config.weights, config.stopping_strategy, limits["train"], config.shuffle_seed
        )
        shares, limits["train"] = {**shares, "train": train}, None
        rows, before = {**rows, "mix": unmixed}, before - unmixed
    shares = {name: cut_to(limits[name], name, some, config.shuffle_seed) for name, some in shares.items()}
    rows["limit"] = before - sum(share.distinct for some in shares.values() for share in some)
    for name, some in shares.items():
        if not any(share.distinct for share in some):
            raise DataError(
                f"the split {name} is empty after splitting and dropping", "check data.split and data.dedupe"
            )
    return shares, dropped._replace(rows={reason: count for reason, count in rows.items() if count})


def _columns(sources: list[Columns]) -> list[str]:
    """All that are written, each once, the label last."""
    kept = dict.fromkeys(ours for columns in sources for ours, _ in columns.kept)
    return [*kept, *(["label"] if sources[0].label else [])]


def _report(config: DataConfig, shares: Shares, dropped: Dropped, out: Workdir) -> None:
    shared = {pair: count for pair, count in dropped.leakage.items() if count}
    if shared and not config.dedupe:
        told = ", ".join(f"{count} of {pair.replace('/', ' also in ')}" for pair, count in shared.items())
        out.warn(f"texts shared by splits: {told}; data.dedupe=true drops those of train")
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
