"""Write predictions.parquet: the prediction, or the losses, of each evaluated row. The rows are those of
`<split>.parquet`, which format_prompts wrote, in the same order; rows that tokenizing or packing dropped are missing.

The column `row` is the row's number in `<split>.parquet`, from 0. The column `digest` is `sha256:<hex>` of the text
that the model reads (UTF-8), by which predictions of different models, or of rows in another order, can be joined.
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
    """The losses of a language model for the rows of a split as format_prompts wrote them, by ascending row number.
    All arrays are [rows].

    row: int64, the row's number from 0; nll: float64, the sum of the negative log likelihoods of the row's supervised
    tokens, in nats; tokens: int64, the number of supervised tokens; bytes: int64, the number of UTF-8 bytes of the
    supervised tokens' text, without special tokens; cut: bool, whether some of the row's tokens were left out, or the
    row was divided into several pieces."""

    row: Ints
    nll: NDArray[np.float64]
    tokens: Ints
    bytes: Ints
    cut: NDArray[np.bool_]


def source_rows(packed: Input, split: str) -> Ints:
    """Return the number of the row in `<split>.parquet` of format_prompts that each segment of a split comes from,
    int64 [segments]. A segment is a row, or a piece of one, in a packed chunk; segments are in the order in which the
    module `forward` reads them: by length, chunk and segment id."""
    return _segments(packed, split)[:, 0]


def row_losses(found: TokenLosses, packed: Input, split: str, tokenizer: FastTokenizer) -> RowLosses:
    """Sum the losses of segments by the row of format_prompts that they come from, and return the sums. A segment is a
    row, or a piece of one, in a packed chunk: packing may cut a row into several.

    found: the losses of all segments of the split; packed: the artifact of pack_chunks; tokenizer: the model's, which
    turns supervised tokens back into text to count their bytes."""
    import numpy as np

    segments = _segments(packed, split)
    rows, at, pieces = np.unique(segments[:, 0], return_inverse=True, return_counts=True)

    def total(values: Any) -> Any:
        return np.bincount(at, weights=values, minlength=len(rows))

    whole = np.zeros(len(rows), dtype=np.int64)
    whole[at] = segments[:, 1]
    spelled = np.fromiter(_spelled_bytes(packed, split, tokenizer), dtype=np.int64, count=len(segments))
    kept, tokens, spelled = (total(values).astype(np.int64) for values in (found.sizes, found.tokens, spelled))
    return RowLosses(rows, total(found.nll), tokens, spelled, (pieces > 1) | (kept < whole))


def write_classes(found: Predictions, labels: list[str], rows: Ints, texts: Path, to: Path) -> None:
    """Write the predictions of a classifier to the file `to`, sorted by row, with the columns row, digest, label and
    predicted (names of classes), probabilities (float32, in the order of `labels`) and loss (nats).

    The column digest is the SHA-256 of the row's text. rows: the number of the row in `texts` that each prediction is
    about; texts: the split's `<split>.parquet` of format_prompts."""
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
        "label": names[found.expected[order]],
        "predicted": names[found.predicted[order]],
        "probabilities": list(found.probabilities[order]),
        "loss": found.loss[order],
    }
    _write(columns, schema, texts, to)


def write_losses(found: RowLosses, texts: Path, to: Path) -> None:
    """Write the losses of a language model to the file `to`, one row for each row of `found`, with the columns row,
    digest (SHA-256 of the row's text), nll, tokens, bytes and cut (see `RowLosses`). texts: the split's
    `<split>.parquet` of format_prompts."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("row", pa.int64()), ("digest", pa.string()), ("nll", pa.float64()), ("tokens", pa.int64()),
            ("bytes", pa.int64()), ("cut", pa.bool_()),
        ]
    )  # fmt: skip
    _write(found._asdict(), schema, texts, to)


def text_of(texts: Path, row: int) -> str:
    """Return the text of one row of a Parquet file of format_prompts, as the model reads it. texts: the file; row: the
    row's number, from 0."""
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
    """The UTF-8 bytes of the text that the supervised tokens of each segment decode to, in the order of `source_rows`."""
    for length in sorted(int(length) for length, count in packed.meta["rows"][split].items() if count):
        columns = open_chunks(packed, split, length)
        for labels, segments in zip(columns["labels"], columns["segment_ids"], strict=True):
            supervised = labels != IGNORED
            ids = [labels[supervised & (segments == number)].tolist() for number in range(1, int(segments.max()) + 1)]
            yield from (len(text.encode()) for text in tokenizer.tokenizer.decode_batch(ids, skip_special_tokens=True))
