"""Measure how a recipe's data differs from the data of its champion, as the section `checks` says.

Only the columns that a check needs are read, with 8 bytes of memory a row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import model_validator

from trnflow.tasks.artifact import Meta
from trnflow.tasks.config import NonNegative, StageConfig
from trnflow.tasks.data.load.selection import row_hashes, shared_rows
from trnflow.tasks.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

What = Literal["rows", "label_share", "longest", "leakage", "lengths"]

LIMITS: dict[str, float] = {"rows": 0.1, "label_share": 0.1, "longest": 100_000.0, "leakage": 0.01, "lengths": 0.1}
"""The default of `limit`."""
AGAINST_CHAMPION = ("rows", "label_share", "lengths")
"""Checks that compare with the data of the champion."""
WITH_COLUMN = ("label_share", "longest", "lengths")
CHANCE = 0.01
"""Lengths pass if chance explains their difference with at least this p value."""
BATCH = 1 << 14


class CheckConfig(StageConfig):
    """A check of the data that `trnflow retrain` makes before training: an entry of the recipe's section `checks`."""

    what: What
    """What is measured. `rows`: the share of the training rows that is gone since the champion was trained; 0 if there are
    more. `label_share`: the largest difference between a class's share of the training rows and its share of the
    champion's. `longest`: the number of characters of the longest text of any split. `leakage`: the share of the test rows
    whose text is also in train, before the frozen rows are dropped from train. `lengths`: the Kolmogorov-Smirnov statistic of
    the lengths of the training texts, in characters, and of the champion's: the largest difference of the shares of texts
    up to some length. (The statistic, because a p value becomes small for any difference if there are many rows. If there are
    so few that chance explains the difference, with a p value of at least 0.01, the check passes.)"""
    limit: NonNegative | None = None
    """The largest value that passes. Default: 0.1 for `rows`, `label_share` and `lengths`, 0.01 for `leakage`, 100,000 for
    `longest`."""
    then: Literal["warn", "stop"] = "warn"
    """What happens if the value is above the limit: `warn` says so and trains, `stop` ends the retrain before training."""
    column: str | None = None
    """The column that is measured. Default: for `label_share` the label, for `longest` and `lengths` all text columns
    together; `rows` and `leakage` take none."""

    @model_validator(mode="after")
    def _settings_fit(self) -> CheckConfig:
        if self.column is not None and self.what not in WITH_COLUMN:
            raise ValueError(f"`column` is for {', '.join(WITH_COLUMN)}, not for {self.what}")
        if self.what != "longest" and self.limit is not None and self.limit > 1:
            raise ValueError(f"`limit` of {self.what} is a share, at most 1")
        return self

    @property
    def most(self) -> float:
        """The largest value that passes: `limit`, or its default."""
        return LIMITS[self.what] if self.limit is None else self.limit


class LoadedRows(NamedTuple):
    """Data as `load_data` wrote it. folder: of the artifact's `<split>.parquet`."""

    folder: Path
    meta: Meta


class Measured(NamedTuple):
    """A measured value. value: in the unit of `limit`, None if the check can't be applied; why: in words.

    by_chance: whether chance explains the value, so that the check passes.
    """

    value: float | None
    why: str
    by_chance: bool = False


def measure(check: CheckConfig, now: LoadedRows, raw: LoadedRows, before: LoadedRows | None) -> Measured:
    """Measure the value that a check compares with its limit. Raises ConfigError for a column that is missing or no
    text.

    Args:
        now: The present data, without training rows that are among the frozen rows.
        raw: The present data with them.
        before: The champion's data, or None.
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
    import pyarrow.parquet as pq

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
    import numpy as np

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
    import numpy as np
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
    import numpy as np
    import pyarrow.parquet as pq

    kinds = {field.name: field.type for field in pq.read_schema(_file(rows, split))}
    named = [check.column] if check.column else rows.meta["text"] or [name for name in kinds if name != "label"]
    names = [name for name in named if _is_text(kinds[name])]
    sizes = [sum(map(_sizes, batch.columns)) for batch in _batches(rows, split, names)] if names else []
    return np.concatenate(sizes).astype(np.int64) if sizes else np.zeros(0, np.int64)


def _sizes(column: pa.Array) -> Any:
    import pyarrow.compute as pc

    return pc.fill_null(pc.utf8_length(column), 0).to_numpy(zero_copy_only=False)


def _batches(rows: LoadedRows, split: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(_file(rows, split), pre_buffer=False) as file:
        for batch in file.iter_batches(BATCH, columns=columns):
            yield batch.select(columns)


def _file(rows: LoadedRows, split: str) -> Path:
    return rows.folder / f"{split}.parquet"


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
