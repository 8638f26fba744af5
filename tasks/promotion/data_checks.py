"""Measure how a recipe's data differs from the data of its champion, as the section `checks` says.

Only the columns that a check needs are read, with 8 bytes of memory a row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.load.selection import row_hashes, shared_rows
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.promotion.settings import CheckConfig

CHANCE = 0.01
"""Lengths pass if chance explains their difference with at least this p value."""
BATCH = 1 << 14


class LoadedRows(NamedTuple):
    """Data as `load_data` wrote it. folder: of the artifact's `<split>.parquet`."""

    folder: Path
    meta: Meta


class Measured(NamedTuple):
    """A measured value, None if the check can't be applied. by_chance: chance explains it, so that the check passes."""

    value: float | None
    why: str
    by_chance: bool = False


def measure(check: CheckConfig, now: LoadedRows, raw: LoadedRows, before: LoadedRows | None) -> Measured:
    """Measure the value that a check compares with its limit. Raises ConfigError for a column that is missing or no text.

    now: the present data, without training rows that are among the frozen rows; raw: the present data with them; before: the
    champion's data, or None.
    """
    if check.column is not None:
        _check_column(check, now)
    if check.what == "longest":
        return _longest(check, now)
    if check.what == "leakage":
        return _leakage(raw)
    if before is None:
        return Measured(None, "there is no data of a champion to compare with")
    return {"rows": _lost_rows, "label_share": _label_share, "lengths": _lengths}[check.what](check, now, before)


def _check_column(check: CheckConfig, rows: LoadedRows) -> None:
    columns = rows.meta["columns"]
    if check.column not in columns:
        raise ConfigError(
            f"checks: {check.what} names the column {check.column}, which the data does not have",
            f"name one of {', '.join(columns)} (data.columns says which are read)",
        )
    kind = pq.read_schema(_file(rows, "train")).field(check.column).type
    if check.what != "label_share" and not _is_text(kind):
        raise ConfigError(
            f"checks: {check.what} measures texts, and the column {check.column} is {kind}", "name a column of texts"
        )


def _lost_rows(check: CheckConfig, now: LoadedRows, before: LoadedRows) -> Measured:
    rows, had = now.meta["splits"]["train"], before.meta["splits"]["train"]
    return Measured(max(0.0, 1 - rows / had), f"{rows:,} training rows, where the champion had {had:,}")


def _label_share(check: CheckConfig, now: LoadedRows, before: LoadedRows) -> Measured:
    if check.column is None and (now.meta["labels"] is None or before.meta["labels"] is None):
        return Measured(None, "the data has no labels")
    if check.column is not None and check.column not in before.meta["columns"]:
        return Measured(None, f"the champion's data has no column {check.column}")
    ours, theirs = (_shares(check, rows) for rows in (now, before))
    name = max(sorted({*ours, *theirs}), key=lambda one: abs(ours[one] - theirs[one]))
    why = f"{name} is {ours[name]:.1%} of the training rows, and was {theirs[name]:.1%} of the champion's"
    return Measured(abs(ours[name] - theirs[name]), why)


def _shares(check: CheckConfig, rows: LoadedRows) -> defaultdict[str, float]:
    """Return {class: its share of the training rows}."""
    counts: Counter[str] = Counter()
    if check.column is None or (check.column == "label" and rows.meta["labels"] is not None):
        counts.update(rows.meta["label_counts"]["train"])
    else:
        for batch in _batches(rows, "train", [check.column]):
            counts.update(map(str, batch.column(0).to_pylist()))
    return defaultdict(float, {name: count / counts.total() for name, count in counts.items()})


def _longest(check: CheckConfig, now: LoadedRows) -> Measured:
    found = {split: _text_lengths(check, now, split) for split in sorted(now.meta["splits"])}
    split = max(found, key=lambda one: int(found[one].max(initial=0)))
    if not len(found[split]):
        return Measured(None, "the data has no text")
    row = int(found[split].argmax())
    length = int(found[split][row])
    return Measured(float(length), f"row {row + 1} of {split} has {length:,} characters")


def _leakage(raw: LoadedRows) -> Measured:
    if "test" not in raw.meta["splits"]:
        return Measured(None, "the data has no test split")
    names = raw.meta["text"] or [name for name in raw.meta["columns"] if name != "label"]
    hashes = {
        split: np.concatenate([row_hashes(batch.columns) for batch in _batches(raw, split, names)])
        for split in ("test", "train")
    }
    shared = shared_rows(hashes)["test", "train"]
    return Measured(float(shared.mean()), f"{int(shared.sum()):,} of {len(shared):,} test rows are also in train")


def _lengths(check: CheckConfig, now: LoadedRows, before: LoadedRows) -> Measured:
    from scipy.stats import ks_2samp

    if check.column is not None and check.column not in before.meta["columns"]:
        return Measured(None, f"the champion's data has no column {check.column}")
    ours, theirs = (_text_lengths(check, rows, "train") for rows in (now, before))
    if not len(ours) or not len(theirs):
        return Measured(None, "the data has no text")
    found = ks_2samp(ours, theirs, method="asymp")
    why = f"the median is {np.median(ours):,.0f} characters, and was {np.median(theirs):,.0f}; p {found.pvalue:.2g}"
    return Measured(float(found.statistic), why, by_chance=bool(found.pvalue >= CHANCE))


def _text_lengths(check: CheckConfig, rows: LoadedRows, split: str) -> NDArray[np.int64]:
    """Return the number of characters of each row of a split: int64 [rows]; empty without text."""
    kinds = {field.name: field.type for field in pq.read_schema(_file(rows, split))}
    named = [check.column] if check.column else rows.meta["text"] or [name for name in kinds if name != "label"]
    names = [name for name in named if _is_text(kinds[name])]
    sizes = [sum(map(_sizes, batch.columns)) for batch in _batches(rows, split, names)] if names else []
    return np.concatenate(sizes).astype(np.int64) if sizes else np.zeros(0, np.int64)


def _sizes(column: pa.Array) -> Any:
    return pc.fill_null(pc.utf8_length(column), 0).to_numpy(zero_copy_only=False)


def _batches(rows: LoadedRows, split: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(_file(rows, split), pre_buffer=False) as file:
        for batch in file.iter_batches(BATCH, columns=columns):
            yield batch.select(columns)


def _file(rows: LoadedRows, split: str) -> Path:
    return rows.folder / f"{split}.parquet"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
