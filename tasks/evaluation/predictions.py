"""Write predictions.parquet: the prediction, or the losses, of each evaluated row.

In the file `row` is the number in `<split>.parquet` of format_prompts, from 1; here rows count from 0. `text` is what
the model reads, and `digest` its `sha256:<hex>`, by which predictions of different models can be joined.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.tables import write_rows
from trnflow.tasks.data.texts import text_of_example
from trnflow.tasks.evaluation.columns import ClassPredictions, RowLosses
from trnflow.tasks.evaluation.evaluated_rows import EvaluatedRows

if TYPE_CHECKING:
    import pyarrow as pa

    from trnflow.tasks.system.arrays import Ints

BATCH = 1024


def write_classes(predictions: ClassPredictions, labels: list[str], rows: Ints, given: EvaluatedRows, to: Path) -> None:
    """Write a classifier's predictions to `to`, sorted by row: row, text, digest, label, predicted, probabilities
    {label: float32}, loss, and where they are known file and file_row.

    rows: of each prediction, in `given`.
    """
    import numpy as np
    import pyarrow as pa

    order, names = np.argsort(rows, kind="stable"), pa.array(labels, pa.string())
    values = predictions.probabilities[order]
    classes = pa.DictionaryArray.from_arrays(np.tile(np.arange(len(labels), dtype=np.int32), len(values)), names)
    columns = {
        "label": names.take(pa.array(predictions.expected[order])),
        "predicted": names.take(pa.array(predictions.predicted[order])),
        "probabilities": pa.MapArray.from_arrays(
            np.arange(len(values) + 1, dtype=np.int32) * len(labels), classes, values.ravel()
        ),
        "loss": predictions.loss[order],
    }
    _write(rows[order], pa.table(columns), given, to)


def write_answers(answers: dict[str, list[Any]], loss: Any, rows: Ints, given: EvaluatedRows, to: Path) -> None:
    """Write the columns of `Kind.row_answers` with row, text, digest and loss to `to`, sorted by row. Arguments as of
    `write_classes`."""
    import numpy as np
    import pyarrow as pa

    order = np.argsort(rows, kind="stable")
    columns: dict[str, Any] = {name: pa.array([values[at] for at in order]) for name, values in answers.items()}
    _write(rows[order], pa.table({**columns, "loss": loss[order]}), given, to)


def write_losses(losses: RowLosses, given: EvaluatedRows, to: Path) -> None:
    """Write `RowLosses` with the columns row, text, digest, and where they are known file and file_row, to `to`."""
    import pyarrow as pa

    columns = losses._asdict()
    _write(columns.pop("row"), pa.table(columns), given, to)


def _write(rows: Ints, table: pa.Table, given: EvaluatedRows, to: Path) -> None:
    """Write row, text and digest, the columns of a table, and the rows' places. rows: int64 [rows], ascending."""
    import numpy as np
    import pyarrow as pa

    for name, values in given.places(rows).items():
        table = table.append_column(name, values)
    schema = pa.schema([("row", pa.int64()), ("text", pa.string()), ("digest", pa.string()), *table.schema])

    def tables() -> Iterator[pa.Table]:
        first = done = 0
        for block in _texts(given.texts):
            end = int(np.searchsorted(rows, first + len(block)))
            here = rows[done:end]
            read = [block[row - first] for row in here]
            digests = [f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" for text in read]
            columns = [pa.array(here + 1), pa.array(read, pa.string()), pa.array(digests, pa.string())]
            yield pa.table([*columns, *table.slice(done, end - done).columns], schema)
            first, done = first + len(block), end

    write_rows(tables(), schema, to, lambda count: None)


def _texts(texts: Path) -> Iterator[list[str]]:
    """Yield the texts of a file of format_prompts, some at a time."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(texts, pre_buffer=False) as file:
        columns = [name for name in file.schema_arrow.names if name != "label"]
        for batch in file.iter_batches(BATCH, columns=columns):
            yield [text_of_example(row) for row in batch.to_pylist()]
