"""Write predictions.parquet: the prediction, or the losses, of each evaluated row.

`row` is the number in `<split>.parquet` of format_prompts, from 0. `digest` is `sha256:<hex>` of the text that the
model reads, by which predictions of different models can be joined.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Input
from trnflow.tasks.data.chunks import open_chunks, open_segments
from trnflow.tasks.data.tables import read_rows, write_rows
from trnflow.tasks.evaluation.forward import Predictions, TokenLosses
from trnflow.tasks.training.batches.sampler import IGNORED

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer

    Ints = NDArray[np.int64]

BATCH = 1024


class RowLosses(NamedTuple):
    """A language model's losses by row of format_prompts, ascending. All are [rows].

    nll: in nats; tokens: supervised ones; bytes: of their text in UTF-8; cut: tokens were left out, or the row was
    divided.
    """

    row: Ints
    nll: NDArray[np.float64]
    tokens: Ints
    bytes: Ints
    cut: NDArray[np.bool_]


def source_rows(packed: Input, split: str) -> Ints:
    """Return the row in `<split>.parquet` of each segment of a split, in the order of `forward`: int64 [segments]."""
    return _segments(packed, split)[:, 0]


def row_losses(losses: TokenLosses, packed: Input, split: str, tokenizer: FastTokenizer) -> RowLosses:
    """Sum the losses of segments by row of format_prompts.

    packed: of pack_chunks; tokenizer: turns supervised tokens back into text, to count bytes.
    """
    import numpy as np

    segments = _segments(packed, split)
    rows, at, pieces = np.unique(segments[:, 0], return_inverse=True, return_counts=True)

    def total(values: Any) -> Any:
        return np.bincount(at, weights=values, minlength=len(rows))

    whole = np.zeros(len(rows), dtype=np.int64)
    whole[at] = segments[:, 1]
    spelled = np.fromiter(_spelled_bytes(packed, split, tokenizer), dtype=np.int64, count=len(segments))
    kept, tokens, spelled = (total(values).astype(np.int64) for values in (losses.sizes, losses.tokens, spelled))
    return RowLosses(rows, total(losses.nll), tokens, spelled, (pieces > 1) | (kept < whole))


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


def _segments(packed: Input, split: str) -> Ints:
    import numpy as np

    lengths = sorted(int(length) for length, count in packed.meta["rows"][split].items() if count)
    return np.concatenate([open_segments(packed, split, length) for length in lengths])


def _spelled_bytes(packed: Input, split: str, tokenizer: FastTokenizer) -> Iterator[int]:
    """Yield the UTF-8 bytes of each segment's supervised tokens, in the order of `source_rows`."""
    for length in sorted(int(length) for length, count in packed.meta["rows"][split].items() if count):
        columns = open_chunks(packed, split, length)
        for labels, segments in zip(columns["labels"], columns["segment_ids"], strict=True):
            supervised = labels != IGNORED
            ids = [labels[supervised & (segments == number)].tolist() for number in range(1, int(segments.max()) + 1)]
            yield from (len(text.encode()) for text in tokenizer.tokenizer.decode_batch(ids, skip_special_tokens=True))
