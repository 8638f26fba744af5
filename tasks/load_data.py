"""Load a dataset: one parquet file a split, with the chosen columns and labels as ids.

Equal rows give equal bytes, from any format. Takes a batch and 8 bytes a row of memory (60 with `dedupe` or
`stratify`), and the columns uncompressed on disk. Raises DataError with file and row, ConfigError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.data.load.config import DataConfig as DataConfig
from trnflow.tasks.data.load.config import SourceConfig, errors_name_source
from trnflow.tasks.sources.data_source import resolve_source
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.sources.split_files import FileSettings
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.system.redaction import fill_variables

if TYPE_CHECKING:
    from trnflow.tasks.metadata import FrozenMeta, RowsMeta


def data_source(config: DataConfig, resolver: Resolver) -> Source:
    """Resolve `data.source` to exact bytes, or each source of a mixture: identity `{mix: {name: identity}}`."""
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


@stage(kind="rows", role="rows")
def load_data(config: DataConfig, source: Source, frozen: Input[FrozenMeta] | None = None, *, out: Workdir) -> RowsMeta:
    """Write `<split>.parquet` for each split, with `label: int64` if there is a label.

    Returns metadata:
        columns, text: Names of the written and of the text columns.
        labels: Class names by id, or null.
        dropped: {reason: rows}; `frozen`: train rows with the text of a frozen row.
        duplicates: Train rows whose text is in an earlier one.
        leakage: {"train/test": train rows whose text is in test}.
        label_counts: {split: {label: rows}}, only with labels.
        sources, overlap: Of a mixture: {split: {source: rows}}, {"a/b": train rows of a whose text is in b}.
    """
    from trnflow.tasks.data.load.loading import load_splits

    return load_splits(config, source, frozen, out)
