"""Stage `freeze_rows`: copy the rows of the test split, on which models are compared later, whatever the data becomes.

Costs one pass over the split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.config import StageConfig
from trnflow.tasks.data.tables import write_rows
from trnflow.tasks.errors import DataError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.stage import Workdir, stage

if TYPE_CHECKING:
    import pyarrow as pa

SPLIT = "test"
ROW_ID = "row_id"
"""The column that names a row: 16 hexadecimal digits of its content's digest, `-N` for the Nth repetition."""
FROZEN_ROW = "frozen_row"
"""The column with the number, from 0, of the frozen row that an example was made from."""
BATCH = 4096


class FreezeConfig(StageConfig):
    """Settings of the stage `freeze_rows`, which copies the test rows on which models are compared: there are none."""


@stage(kind="frozen")
def freeze_rows(config: FreezeConfig, rows: Input, out: Workdir) -> Meta:
    """Write `test.parquet`: the columns of load_data's test split, the label as text, and `row_id: string`.

    Returns metadata: split, rows, columns (without `row_id`), text, labels, nested.

    Raises:
        DataError: The data has no test split, or has a column named `row_id`.
    """
    if not rows.meta["splits"].get(SPLIT):
        there = ", ".join(rows.meta["splits"])
        raise DataError(
            f"the data has no rows in its {SPLIT} split, which is what is frozen (it has: {there})",
            "let load_data make one: data.split={train: 0.8, validation: 0.1, test: 0.1}",
        )
    if ROW_ID in rows.meta["columns"]:
        raise DataError(f"the data has a column {ROW_ID}, the name of the column that freeze adds", "rename the column")
    # not as tokens, since each model has a tokenizer of its own; labels by name, since two models may number them
    # differently
    tables, schema = _named_tables(rows), _schema(rows)
    total = rows.meta["splits"][SPLIT]
    count = write_rows(tables, schema, out.path / f"{SPLIT}.parquet", lambda rows: out.progress(rows, total))
    return {
        "split": SPLIT,
        "rows": count,
        "columns": rows.meta["columns"],
        "text": rows.meta["text"],
        "labels": rows.meta["labels"],
        "nested": rows.meta.get("nested", []),
        "metrics": {"frozen_rows": count},
    }


def _schema(rows: Input) -> pa.Schema:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pq.read_schema(rows.path / f"{SPLIT}.parquet").remove_metadata()
    labelled = rows.meta["labels"] is not None
    fields = [pa.field("label", pa.string()) if labelled and column.name == "label" else column for column in schema]
    return pa.schema([pa.field(ROW_ID, pa.string()), *fields])


def _named_tables(rows: Input) -> Iterator[pa.Table]:
    """Yield the split's rows with `row_id` and with labels by name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, labels = _schema(rows), rows.meta["labels"]
    seen: Counter[str] = Counter()
    for batch in pq.ParquetFile(rows.path / f"{SPLIT}.parquet", pre_buffer=False).iter_batches(BATCH):
        table = pa.Table.from_batches([batch])
        if labels is not None:
            names = pa.array([labels[number] for number in table.column("label").to_pylist()], pa.string())
            table = table.set_column(table.column_names.index("label"), "label", names)
        ids = pa.array([_row_id(row, seen) for row in table.to_pylist()], pa.string())
        yield table.add_column(0, ROW_ID, ids).cast(schema)


def _row_id(row: Meta, seen: Counter[str]) -> str:
    """Return the `row_id` of a row. seen: {digest: number of earlier rows}, to which this row is added."""
    digest = digest_of({name: value if _is_plain(value) else str(value) for name, value in row.items()})[7:23]
    seen[digest] += 1
    return digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def _is_plain(value: object) -> bool:
    """Return whether canonical JSON has the value: dates and numbers that are not finite count by their text."""
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and abs(value) < 1e308)
