"""Read the rows to predict from a file, and write predictions as JSON lines."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.conversation import Row
from trnflow.tasks.errors import ConfigError, DataError, MachineError
from trnflow.tasks.sources.data_files import FORMATS, format_of


class RowFile:
    """A data file with rows to predict; iterate to read them. name: for errors; count: of rows.

    Raises DataError without rows or for one that is no object, ConfigError for a file or column that is not there.
    """

    def __init__(self, path: Path, columns: list[str], optional: list[str]) -> None:
        from trnflow.tasks.data.load.readers import open_file

        kind = format_of(path.name)
        if not path.is_file():
            raise ConfigError(f"--file: there is no file {path}", "name a file of rows, such as rows.jsonl")
        if kind is None:
            raise ConfigError(f"--file: {path.name} is no data file by its name", f"name it {', '.join(FORMATS)}")
        self.name = path.name
        self._rows = open_file(path, kind, path.name)
        there = self._rows.schema.names
        if not there:
            raise DataError(f"{self.name} holds no rows", "give it rows")
        if missing := [column for column in columns if column not in there]:
            raise ConfigError(
                f"{self.name} has no column {missing[0]}, which the model reads (it has: {', '.join(there)})",
                f"give rows with the columns {', '.join(columns)}",
            )
        self._columns = [*columns, *(column for column in optional if column in there)]
        self.count = sum(batch.num_rows for batch in self._rows.batches(columns[:1]))
        if not self.count:
            raise DataError(f"{self.name} holds no rows", "give it rows")

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        """Yield (name in errors, row)."""
        rows = (row for batch in self._rows.batches(self._columns) for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            yield f"{self.name} row {number}", row


@contextlib.contextmanager
def new_lines(path: Path, source: Path | None) -> Iterator[Callable[[Meta], None]]:
    """Yield a function that appends an object to the new file `path`, as a line of JSON.

    source: Must be another file. Raises ConfigError for a path that can't be written, MachineError for a full disk.
    """
    if source is not None and path.resolve() == source.resolve():
        raise ConfigError(f"--out and --file are both {path}", "write the predictions to another file")
    if path.is_dir():
        raise ConfigError(f"--out: {path} is a folder", "name a file, such as predictions.jsonl")
    # the file appears under its name when it is complete; an error removes the hidden one
    aside = path.with_name(f".{path.name}.partial")
    try:
        file = aside.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--out: {path} can't be written: {error.strerror}", "name a file in a folder that exists and is yours"
        ) from error

    def append(line: Meta) -> None:
        with _writing(path):
            file.write(f"{json.dumps(line, ensure_ascii=False, allow_nan=False)}\n")

    try:
        with file:
            yield append
            with _writing(path):
                file.flush()
        with _writing(path):
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"--out: writing {path} failed: {error.strerror}", "make room, or name a file on another disk"
        ) from error
