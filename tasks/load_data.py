"""Load a dataset: one parquet file a split, with the chosen columns and labels as ids.

Equal rows give equal bytes, from any format. Takes a batch and 8 bytes a row of memory (60 with `dedupe`,
`stratify` or repeated texts with labels), and the columns of text formats uncompressed on disk. Raises DataError
with file and row, ConfigError, MachineError.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.data.load.config import NO_TEST_SPLIT, SourceConfig, errors_name_source
from trnflow.tasks.data.load.config import DataConfig as DataConfig
from trnflow.tasks.sources.data_files import max_growth
from trnflow.tasks.sources.data_source import resolve_source
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.sources.split_files import SPLITS, FileSettings
from trnflow.tasks.stage import Known, Workdir, stage
from trnflow.tasks.system.redaction import fill_variables

if TYPE_CHECKING:
    from trnflow.tasks.data.load.columns import Columns
    from trnflow.tasks.metadata import FrozenMeta, RowsMeta

READ_AHEAD = 16 << 20
"""Bytes of JSON that a plan reads to know its columns."""


def data_source(config: DataConfig, resolver: Resolver) -> Source:
    """Resolve `data.source` to exact bytes, or each source of a mixture: identity `{mix: {name: identity}}`. What
    `data.make` gives is known by its version."""
    max_growth.set(config.max_growth)
    if config.make:
        names = {str(ours): theirs for ours, theirs in config.splits.items()} or {split: split for split in SPLITS}
        made = {**({"version": config.version} if config.version else {}), "arguments": config.arguments}
        return Source("data", {"make": made}, {"splits": names})
    resolved = {}
    for name, part_of in config.sources().items():
        with errors_name_source(name):
            resolved[name] = _resolve(part_of, f"data.mix.{name}" if name else "data", resolver)
    if config.mix is None:
        return resolved[""]
    identity, location = (
        {name: getattr(part_of, part) for name, part_of in resolved.items()} for part in ("identity", "location")
    )
    note = "; ".join(f"{name}: {part_of.note}" for name, part_of in resolved.items() if part_of.note)
    return Source("data", {"mix": identity}, {"mix": location}, note)


def _resolve(config: SourceConfig, section: str, resolver: Resolver) -> Source:
    assert config.source is not None
    source = fill_variables(config.source, "data.source")
    if source.startswith("builtin:"):
        from trnflow.tasks.data.load.corpus import corpus_source

        return corpus_source(source, config.name, resolver)
    splits = {str(ours): theirs for ours, theirs in config.splits.items()}
    folders = {ours: resolver.folder(f"{section}.splits.{ours}") for ours in splits}
    settings = FileSettings(config.format, splits, resolver.folder(f"{section}.source"), folders)
    return resolve_source(source, config.name, config.revision, settings, resolver)


def foresee(config: DataConfig, known: Known) -> Meta:
    """Return the splits, columns and labels of a source whose files are on this machine. Raises ConfigError for a column
    that they lack."""
    if "data" not in known.sources:
        return {}
    location = known.sources["data"].location
    splits: dict[str, None] = {}
    columns: list[Columns] = []
    others: dict[str, None] = {}
    for name, settings in config.sources().items():
        if not is_at_hand(part := location["mix"][name] if name else location):
            return {}
        from trnflow.tasks.data.load.loading import chosen_columns, left_out, open_source, written_columns
        from trnflow.tasks.data.load.streams import max_cell_mb

        max_cell_mb.set(config.max_cell_mb)
        max_growth.set(config.max_growth)
        with errors_name_source(name):
            opened = open_source(part)
            columns.append(chosen_columns(config, settings, opened))
        others |= dict.fromkeys(left_out(columns[-1], opened))
        splits |= dict.fromkeys(opened)
    return {
        "splits": {**splits, **dict.fromkeys(config.shares(splits))},
        "columns": written_columns(columns),
        "text": list(config.texts),
        "labels": list(config.labels or ()) if columns[0].label else None,
        **({"made": made} if (made := config.made(splits)) else {}),
        "left_out": list(others),
    }


def is_at_hand(location: Meta) -> bool:
    """Return whether a source's files are here, and opening them reads little."""
    files = [file for file in location.get("files", ()) if "zip" not in file]
    if not files or len(files) < len(location["files"]) or not all(Path(file["path"]).is_file() for file in files):
        return False
    # the columns of JSON are known when all of it was read
    return sum(Path(file["path"]).stat().st_size for file in files if file["format"] == "jsonl") <= READ_AHEAD


def needs(config: DataConfig, known: Known) -> Iterator[str]:
    """Say that a test split is made."""
    if known.of("rows").get("made"):
        yield NO_TEST_SPLIT


@stage(kind="rows", role="rows", foresee=foresee, needs=needs)
def load_data(
    config: DataConfig,
    source: Source,
    frozen: Input[FrozenMeta] | None = None,
    code: Source | None = None,
    *,
    out: Workdir,
) -> RowsMeta:
    """Write `<split>.parquet` for each split, with `label: int64` if there is a label. Train rows with the text of a frozen
    row are dropped as `frozen`."""
    from trnflow.tasks.data.load.loading import load_splits

    if code:
        from trnflow.tasks.data.load.own_source import made_source

        source = made_source(config, source, code, out)
    return load_splits(config, source, frozen, out)
