"""Read the rows to predict from a file."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.data.format.conversation import Row
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.sources.data_files import FORMATS, format_of

if TYPE_CHECKING:
    import pyarrow as pa


class RowFile:
    """A data file with rows to predict; iterate to read them.

    Attributes:
        name: For errors.
        count: Of rows.
        schema: Of all columns, as the file has them.
        bytes: The columns that hold bytes.
        misspelt: {column that the model reads where there is one: a column that nothing reads of nearly that name}.

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
        self._carried = self._rows.given or self._rows
        self.schema: pa.Schema = self._carried.schema
        there = self.schema.names
        self.bytes = [field.name for field in self.schema if _has_bytes(field.type)]
        if not there:
            raise DataError(f"{self.name} holds no rows", "give it rows")
        if missing := [column for column in columns if column not in there]:
            raise ConfigError(
                f"{self.name} has no column {missing[0]}, which the model reads (it has: {', '.join(there)})",
                f"give rows with the columns {', '.join(columns)}",
            )
        self._columns = [*columns, *(column for column in optional if column in there)]
        lacking, others = set(optional) - set(there), [name for name in there if name not in self._columns]
        close = {name: difflib.get_close_matches(name, others, 1, 0.75) for name in sorted(lacking)}
        self.misspelt = {name: near[0] for name, near in close.items() if near}
        self.count = sum(batch.num_rows for batch in self._rows.batches(columns[:1]))
        if not self.count:
            raise DataError(f"{self.name} holds no rows", "give it rows")

    def values(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield each row's values of other columns, in the order of the rows."""
        import pyarrow as pa

        nested = [name for name in columns if isinstance(self.schema.field(name).type, pa.JsonType)]
        for batch in self._carried.batches([*columns]):
            for row in batch.to_pylist():
                yield {**row, **{name: json.loads(row[name]) for name in nested if row[name] is not None}}

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        """Yield (name in errors, row)."""
        rows = (row for batch in self._rows.batches(self._columns) for row in batch.to_pylist())
        for number, row in enumerate(rows, 1):
            yield f"{self.name} row {number}", row


def _has_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return any(is_binary(kind) for is_binary in binary) or any(map(_has_bytes, inner))
