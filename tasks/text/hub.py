"""A hub dataset at a commit, as rows by split. Downloads go to the hub's own cache; no code of a repository is run.

Fails with DataError when the dataset can't be read, ConfigError when it lacks a split or a configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tasks.artifact import Meta
from tasks.errors import ConfigError, DataError
from tasks.hub import hub_errors
from tasks.text.files import ALIASES
from tasks.text.readers import BATCH, Rows

if TYPE_CHECKING:
    import pyarrow as pa


def hub_splits(location: Meta) -> dict[str, Rows]:
    """location: `hub` (repository), `name` (configuration or null), `commit`, `splits` (ours -> theirs, or {})."""
    datasets = _load(location["hub"], location["name"], location["commit"])
    wanted = location["splits"] or {ALIASES[name]: name for name in datasets if name in ALIASES}
    for ours, theirs in wanted.items():
        if theirs not in datasets:
            raise ConfigError(
                f"data.splits.{ours}: {location['hub']} has no split {theirs} (it has {', '.join(datasets)})",
                f"change data.splits.{ours}, or make the split from train with data.split.{ours}=0.1",
            )
    if "train" not in wanted:
        raise ConfigError(
            f"{location['hub']} has no train split (it has {', '.join(datasets)})", "set data.splits.train"
        )
    return {ours: _rows(datasets[theirs], f"{location['hub']} {theirs}") for ours, theirs in wanted.items()}


def _load(repo: str, name: str | None, commit: str | None) -> Any:
    from datasets import disable_progress_bars, load_dataset
    from datasets.exceptions import DatasetsError

    disable_progress_bars()  # the stage has a bar of its own
    with hub_errors("data", repo, commit):
        try:
            return load_dataset(repo, name, revision=commit)
        except ValueError as error:
            raise ConfigError(f"the dataset {repo}: {' '.join(str(error).split())[:300]}", "set data.name") from error
        except (DatasetsError, RuntimeError) as error:
            raise DataError(
                f"the dataset {repo} can't be read: {type(error).__name__}: {' '.join(str(error).split())[:200]}",
                "check the repository's files, or point data.source at local files",
            ) from error


def _rows(dataset: Any, name: str) -> Rows:
    def batches(columns: list[str]) -> Iterator[pa.RecordBatch]:
        for table in dataset.select_columns(columns).with_format("arrow").iter(BATCH):
            yield from table.combine_chunks().to_batches()

    return Rows(name, dataset.features.arrow_schema, batches)
