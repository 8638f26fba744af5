"""Data in memory as files in the home, named by their content: equal rows are equal bytes, whatever object held them.

Integers become int64, floats float64, whole numbers integers; NaN, NaT, None and an absent key are the same; a ClassLabel
is its name; columns are sorted, an index and empty columns left out. Costs a row group of memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.sources.data_files import ALIASES

ROWS = 1 << 16
"""Rows that are converted at a time, those of a row group."""
WHOLE = 1 << 53
"""Whole floats below it stand for integers."""
KINDS = "a DataFrame, a datasets.Dataset, a list of dicts, a path, or a dict of these by split"


def rows_of(data: Any) -> list[Any]:
    """Return the rows of a DataFrame, or of any other iterable, as dicts with None where a value is missing; texts as they
    are. Raises DataError for two columns of one name, and for a row that is neither."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        if not data.columns.is_unique:
            twice = data.columns[data.columns.duplicated()][0]
            raise DataError(f"the rows have two columns named {twice}", "rename one")
        columns = [_listed(data[name]) for name in data.columns]
        data = [dict(zip(data.columns, row, strict=True)) for row in zip(*columns, strict=True)]
    return [_row(row, number) for number, row in enumerate(data, 1)]


def _row(row: Any, number: int) -> Any:
    if isinstance(row, str):
        return row
    if not isinstance(row, Mapping):
        raise DataError(f"row {number} is {row!r}", "give a text, or a dict with the columns of training")
    return {name: None if _is_missing(value) else value for name, value in row.items()}


def plain_cell(value: Any) -> Any:
    """Return what JSON has no word for as training reads it: numbers and arrays of numpy as Python's, bytes and any other
    object as text. Raises DataError for bytes that are no UTF-8."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes) and not _is_utf8(value):
        raise DataError("a row holds bytes that are no UTF-8", "give texts")
    return _text(value)


FRAMES = Path("cache", "frames")
"""Where data in memory is written, below the home."""
_SPLITS = "|".join(sorted({*ALIASES.values()}))
_WRITTEN = re.compile(
    rf"(?P<said>split \w+, )?\b(?P<split>{_SPLITS})\.(?:parquet|jsonl)(?: (?:row|line) (?P<row>\d+))?"
)


class Frame(NamedTuple):
    """Rows in memory. cells: (column, first row, row after the last) -> the values of a column."""

    columns: list[str]
    rows: int
    cells: Callable[[str, int, int], Any]


def data_settings(data: Any, home: Path) -> Meta:
    """Return the section `data` of a recipe for data in memory, which is written to the home, or for a path.

    Raises ConfigError for what is no data, DataError for a column of mixed types.
    """
    if isinstance(data, str | os.PathLike):
        text = os.fspath(data)
        return _source(text if "://" in text else _absolute(text))
    splits = data if isinstance(data, Mapping) else {"train": data}
    if not splits or not all(name in ALIASES.values() for name in splits):
        raise ConfigError(f"data: a dict of {', '.join(map(str, splits)) or 'nothing'}", f"give {KINDS}")
    frames = {name: _frame(rows, name) for name, rows in splits.items()}
    folder = home / FRAMES
    aside = folder / f".{os.getpid()}.{get_ident()}"
    aside.mkdir(parents=True)
    try:
        files = [_write(frame, aside / name, name) for name, frame in sorted(frames.items())]
        named = folder / hashlib.sha256("".join(map(_digest, files)).encode()).hexdigest()
        if not named.exists():
            aside.rename(named)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return _source(str(named))


def is_written(source: str | None, home: Path) -> bool:
    """Return whether a recipe's source is data in memory that `data_settings` wrote to a home."""
    return source is not None and Path(source).parent == home / FRAMES


def given_rows(text: str) -> str:
    """Return an error's text with the rows that the user gave in place of those of the file that holds them."""

    def named(found: re.Match[str]) -> str:
        row, split = found["row"], "" if found["said"] else f" of {found['split']}"
        return f"{found['said'] or ''}{_place(int(row) - 1) if row else 'the given data'}{split}"

    return _WRITTEN.sub(named, text)


def _place(position: int) -> str:
    return f"row {position + 1} (.iloc[{position}])"


def _source(source: str) -> Meta:
    return {"source": source, **dict.fromkeys(("name", "revision", "format", "mix")), "splits": {}}


def _absolute(text: str) -> str:
    path = Path(text).expanduser()
    return str(path.absolute()) if path.exists() else text  # else a glob, or a name on the hub


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return f"{file.name}:{hashlib.file_digest(content, 'sha256').hexdigest()}\n"


def _frame(data: Any, split: str) -> Frame:
    """Return rows as `Frame`. Raises ConfigError."""
    pandas, datasets = sys.modules.get("pandas"), sys.modules.get("datasets")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        columns, rows = list(data.columns), len(data)
        frame = Frame(columns, rows, lambda name, first, last: _listed(data[name].iloc[first:last]))
    elif datasets is not None and isinstance(data, datasets.Dataset):
        frame = Frame(data.column_names, len(data), _dataset_cells(data))
    elif (
        isinstance(data, Sequence) and not isinstance(data, str | bytes) and all(isinstance(row, dict) for row in data)
    ):
        columns = list(dict.fromkeys(name for row in data for name in row))
        frame = Frame(columns, len(data), lambda name, first, last: [row.get(name) for row in data[first:last]])
    else:
        raise ConfigError(f"data: {split} is of type {type(data).__name__}", f"give {KINDS}")
    if not frame.rows:
        raise ConfigError(f"data: {split} has no rows", f"give {KINDS}")
    strange = [name for name in frame.columns if not isinstance(name, str)]
    if strange or len({*frame.columns}) < len(frame.columns):
        raise ConfigError(f"data: {split} has columns without names of their own", "name each column by another text")
    return frame


def _listed(column: Any) -> list[Any]:
    """Return a pandas column as Python objects, None where a value is missing."""
    if column.dtype == object:
        return [value.tolist() if type(value).__module__ == "numpy" else value for value in column.tolist()]
    return list(column.astype(object).where(column.notna(), None).tolist())


def _dataset_cells(data: Any) -> Callable[[str, int, int], list[Any]]:
    names = {name: feature.names for name, feature in data.features.items() if hasattr(feature, "int2str")}
    plain = data.with_format(None)

    def cells(name: str, first: int, last: int) -> list[Any]:
        values = plain[first:last][name]
        if name not in names:
            return list(values)
        return [None if value is None or value < 0 else names[name][value] for value in values]

    return cells


def _write(frame: Frame, path: Path, split: str) -> Path:
    """Write rows to `path` with the suffix of their format: Parquet, or JSON lines where a column is nested."""
    found = {name: _kind(frame, name, split) for name in sorted(frame.columns)}
    kinds = {name: kind for name, kind in found.items() if kind}
    if not kinds:
        raise DataError(f"data: {split} has no values", f"give {KINDS}")
    if "nested" in kinds.values():
        return _write_lines(frame, kinds, path.with_suffix(".jsonl"))
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"text": pa.string(), "integer": pa.int64(), "float": pa.float64(), "boolean": pa.bool_()}
    schema = pa.schema([(name, types[kind]) for name, kind in kinds.items()])
    file = path.with_suffix(".parquet")
    with pq.ParquetWriter(file, schema) as writer:
        for first in range(0, frame.rows, ROWS):
            columns = [
                pa.array(_cast(kinds[name], frame.cells(name, first, min(first + ROWS, frame.rows))), field.type)
                for name, field in zip(kinds, schema, strict=True)
            ]
            writer.write_table(pa.table(columns, schema), row_group_size=ROWS)
    return file


def _write_lines(frame: Frame, kinds: dict[str, str], file: Path) -> Path:
    with file.open("w", encoding="utf-8") as lines:
        for first in range(0, frame.rows, ROWS):
            last = min(first + ROWS, frame.rows)
            columns = [_cast(kind, frame.cells(name, first, last)) for name, kind in kinds.items()]
            for row in zip(*columns, strict=True):
                plain = _plain(dict(zip(kinds, row, strict=True)))
                lines.write(f"{json.dumps(plain, ensure_ascii=False, sort_keys=True)}\n")
    return file


def _kind(frame: Frame, name: str, split: str) -> str:
    """Return what a column holds: text, integer, float, boolean, nested, or "" for nothing. Raises DataError."""
    found: dict[str, int] = {}
    for first in range(0, frame.rows, ROWS):
        for row, value in enumerate(frame.cells(name, first, min(first + ROWS, frame.rows)), first):
            if isinstance(value, bytes) and not _is_utf8(value):
                raise DataError(
                    f"data: column {name} of {split} holds bytes that are no UTF-8 in {_place(row)}",
                    "leave the column out",
                )
            kind = _kind_of(value)
            if kind not in found:
                found[kind] = row
    kinds = {*found} - {""}
    if kinds == {"integer", "float"}:
        return "float"
    if len(kinds) > 1:
        first_kind, second = sorted(kinds, key=found.__getitem__)[:2]
        raise DataError(
            f"data: column {name} of {split} holds {first_kind} in {_place(found[first_kind])}, {second} in "
            f"{_place(found[second])}",
            "give the column one type",
        )
    return kinds.pop() if kinds else ""


def _kind_of(value: Any) -> str:
    """Return the kind of one value, "" of a missing one; any object that is no number or list counts as text."""
    if type(value) is str:
        return "text"
    if isinstance(value, dict | list | tuple) or getattr(value, "ndim", 0) != 0:
        return "nested"
    if _is_missing(value):
        return ""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # numpy 2, and 1
        return "boolean"
    if hasattr(value, "__index__"):
        return "integer"
    if isinstance(value, float) or type(value).__name__.startswith("float"):
        return "integer" if float(value).is_integer() and abs(value) < WHOLE else "float"
    return "text"


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT or pandas.NA: those that do not equal themselves, or can't be asked."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        return not hasattr(value, "__len__")  # an array can't be asked, either


def _cast(kind: str, values: Sequence[Any]) -> Iterator[Any]:
    makers: dict[str, Callable[[Any], Any]] = {"text": _text, "integer": int, "float": float, "boolean": bool}
    to = makers.get(kind, lambda value: value)
    return (None if _is_missing(value) else to(value) for value in values)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    """Return a nested value with the keys that have values, for JSON."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items() if not _is_missing(item)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if _is_missing(value) or isinstance(value, str | bool):
        return None if _is_missing(value) else value
    if hasattr(value, "__index__"):
        return int(value)
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value.is_integer() and abs(value) < WHOLE else value
    return value.tolist() if hasattr(value, "tolist") else str(value)
