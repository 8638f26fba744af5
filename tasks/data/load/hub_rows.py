"""Read a hub dataset at a fixed commit; no code of a repository is run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import disable_progress_bars, load_dataset_builder
from datasets.exceptions import DatasetsError
from huggingface_hub import hf_hub_download

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.load.readers import RowReader, bounded, made_plain, open_file
from trnflow.tasks.data.load.row_sizes import BATCH
from trnflow.tasks.data.load.streams import BUFFER, open_stream
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.sources.data_files import ALIASES, format_of
from trnflow.tasks.sources.hub_errors import files_due, hub_errors

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = ("parquet", "csv", "json", "text", "arrow")
"""Kinds of datasets that are read: `datasets` has readers of pickles, too."""


def hub_splits(location: Meta) -> dict[str, list[RowReader]]:
    """Download a dataset, unless it is cached, and return {split: its files, opened}.

    location: {hub, name, commit, splits}; `splits` {} takes the names usual for train, validation and test. Raises
    DataError, or ConfigError for a missing split or configuration.
    """
    disable_progress_bars()  # the stage has a bar of its own
    repo, commit = location["hub"], location["commit"]
    with _dataset_errors(repo, commit):
        builder = load_dataset_builder(repo, location["name"], revision=commit)
        files = _text_files(builder, commit)
        # `datasets` turns texts of json and csv into dates and numbers (007 becomes 7), and drops digits of nested
        # numbers
        if files is not None:
            features = builder.info.features
            wanted = _chosen_splits(location, files)
            files_due("data", repo, commit, {path for theirs in wanted.values() for path in files[theirs]}.__contains__)
            return {
                ours: [_text_rows(repo, commit, path, features) for path in files[theirs]]
                for ours, theirs in wanted.items()
            }
        if builder.name not in TABLES:
            raise DataError(
                f"the dataset {repo} is of the kind {builder.name}, and what can be read is {', '.join(TABLES)}",
                "save it as one of these (`Dataset.to_parquet`)",
            )
        if not Path(builder.cache_dir).exists():
            files_due("data", repo, commit, {*_paths(builder, commit)}.__contains__)
            _check_growth(builder, repo, commit)
        builder.download_and_prepare()
        datasets = builder.as_dataset()
        wanted = _chosen_splits(location, datasets)
        return {ours: [_rows(datasets[theirs], f"{repo} {theirs}")] for ours, theirs in wanted.items()}


def _chosen_splits(location: Meta, there: Iterable[str]) -> dict[str, str]:
    """Return {split: its name at the hub}. Raises ConfigError for one that the dataset lacks."""
    repo, there = location["hub"], list(there)
    wanted: dict[str, str] = location["splits"] or {ALIASES[name]: name for name in there if name in ALIASES}
    for ours, theirs in wanted.items():
        if theirs not in there:
            raise ConfigError(
                f"data.splits.{ours}: {repo} has no split {theirs} (it has {', '.join(there)})",
                f"change data.splits.{ours}, or make the split from train with data.split.{ours}=0.1",
            )
    if "train" not in wanted:
        raise ConfigError(f"{repo} has no train split (it has {', '.join(there)})", "set data.splits.train")
    return wanted


def _text_files(builder: Any, commit: str) -> dict[str, list[str]] | None:
    """Return {split: paths} if all files are json, csv or tsv without settings of the repository, else None."""
    config = builder.config
    apart = ("name", "version", "data_dir", "data_files", "description", "features")
    settings = {field.name: (getattr(config, field.name), field.default) for field in fields(config)}
    changed = {name: now for name, (now, default) in settings.items() if name not in apart and now != default}
    urls = config.data_files or {}
    paths_of = {str(split): [url.partition(f"@{commit}/")[2] for url in some] for split, some in urls.items()}
    formats = {format_of(path) for paths in paths_of.values() for path in paths}
    wanted: Meta = {"sep": "\t"} if formats == {"tsv"} else {}
    return paths_of if formats in ({"jsonl"}, {"csv"}, {"tsv"}) and changed == wanted else None


def _paths(builder: Any, commit: str) -> list[str]:
    """Return the paths of a dataset's files in its repository."""
    return [url.partition(f"@{commit}/")[2] for urls in (builder.config.data_files or {}).values() for url in urls]


def _check_growth(builder: Any, repo: str, commit: str) -> None:
    """Raise DataError for a file that grows more than `data.max_growth` allows: `datasets` copies all decoded rows."""
    for path in _paths(builder, commit):
        place, name = Path(hf_hub_download(repo, path, repo_type="dataset", revision=commit)), f"{repo} {path}"
        if (kind := format_of(path)) in ("parquet", "arrow"):
            rows = bounded(open_file(place, kind, name))
            for _ in rows.batches(rows.schema.names):
                pass
        else:
            with open_stream(place, name) as stream:
                while stream.read(BUFFER):
                    pass


def _text_rows(repo: str, commit: str, path: str, features: Any) -> RowReader:
    """Download a file and open it. features: what the repository declares of its columns, or None."""
    place = hf_hub_download(repo, path, repo_type="dataset", revision=commit)
    rows = open_file(Path(place), format_of(path) or "", f"{repo} {path}")
    if not features:
        return rows
    return made_plain(replace(rows, schema=rows.schema.with_metadata(features.arrow_schema.metadata)))


@contextlib.contextmanager
def _dataset_errors(repo: str, commit: str | None) -> Iterator[None]:
    with hub_errors("data", repo, commit):
        try:
            yield
        except ValueError as error:
            raise ConfigError(f"the dataset {repo}: {' '.join(str(error).split())[:300]}", "set data.name") from error
        except (DatasetsError, RuntimeError) as error:
            raise DataError(
                f"the dataset {repo} can't be read: {type(error).__name__}: {' '.join(str(error).split())[:200]}",
                "check the repository's files, or point data.source at local files",
            ) from error


def _rows(dataset: Any, name: str) -> RowReader:
    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        for table in dataset.select_columns(columns).with_format("arrow").iter(BATCH):
            yield from table.combine_chunks().to_batches()

    return made_plain(RowReader(name, dataset.features.arrow_schema, batches, is_binary=True))
