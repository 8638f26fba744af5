"""Write predictions.parquet: the prediction, or the losses, of each evaluated row.

`row` is the number in `<split>.parquet` of format_prompts, from 0. `digest` is `sha256:<hex>` of the text that the
model reads, by which predictions of different models can be joined.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.tables import read_rows, write_rows
from trnflow.tasks.evaluation.columns import Predictions, RowLosses

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

BATCH = 1024


def write_classes(predictions: Predictions, labels: list[str], rows: Ints, texts: Path, to: Path) -> None:
    """Write a classifier's predictions to `to`: row, digest, label, predicted, probabilities, loss, sorted by row.

    rows: of each prediction; texts: the split's `<split>.parquet`.
    """
    import numpy as np
    import pyarrow as pa

    schema = pa.schema(
        [
            ("row", pa.int64()), ("digest", pa.string()), ("label", pa.string()), ("predicted", pa.string()),
            ("probabilities", pa.list_(pa.float32())), ("loss", pa.float64()),
        ]
    )  # fmt: skip
    order, names = np.argsort(rows, kind="stable"), np.array(labels, dtype=object)
    columns = {
        "row": rows[order],
        "label": names[predictions.expected[order]],
        "predicted": names[predictions.predicted[order]],
        "probabilities": list(predictions.probabilities[order]),
        "loss": predictions.loss[order],
    }
    _write(columns, schema, texts, to)


def write_losses(losses: RowLosses, texts: Path, to: Path) -> None:
    """Write `RowLosses` with the column digest to `to`. texts: the split's `<split>.parquet`."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("row", pa.int64()), ("digest", pa.string()), ("nll", pa.float64()), ("tokens", pa.int64()),
            ("bytes", pa.int64()), ("cut", pa.bool_()),
        ]
    )  # fmt: skip
    _write(losses._asdict(), schema, texts, to)


def text_of(texts: Path, row: int) -> str:
    """Return the text of one row of a Parquet file of format_prompts."""
    return _text(read_rows(texts, row, 1).to_pylist()[0])


def _write(columns: dict[str, Any], schema: pa.Schema, texts: Path, to: Path) -> None:
    import pyarrow as pa

    digests = list(_digests(texts))
    columns = {**columns, "digest": [digests[row] for row in columns["row"]]}
    table = pa.table({name: pa.array(columns[name], schema.field(name).type) for name in schema.names}, schema)
    write_rows([table], schema, to, lambda done: None)


def _digests(texts: Path) -> Iterator[str]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(texts, pre_buffer=False) as file:
        columns = [name for name in file.schema_arrow.names if name != "label"]
        for batch in file.iter_batches(BATCH, columns=columns):
            for row in batch.to_pylist():
                yield f"sha256:{hashlib.sha256(_text(row).encode()).hexdigest()}"


def _text(row: Any) -> str:
    return str(row["text"]) if "text" in row else "".join(part["text"] for part in row["parts"])
