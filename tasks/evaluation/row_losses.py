"""Which row of format_prompts each evaluated segment is of, and a language model's losses by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Input
from trnflow.tasks.data.chunks import open_chunks, open_segments
from trnflow.tasks.evaluation.columns import RowLosses
from trnflow.tasks.training.batches.sampler import IGNORED

if TYPE_CHECKING:
    from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer
    from trnflow.tasks.evaluation.forward import TokenLosses
    from trnflow.tasks.system.arrays import Ints


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
    spelled = np.fromiter(spelled_bytes(packed, split, tokenizer), dtype=np.int64, count=len(segments))
    kept, tokens, spelled = (total(values).astype(np.int64) for values in (losses.sizes, losses.tokens, spelled))
    return RowLosses(rows, total(losses.nll), tokens, spelled, (pieces > 1) | (kept < whole))


def _segments(packed: Input, split: str) -> Ints:
    import numpy as np

    lengths = sorted(int(length) for length, count in packed.meta["rows"][split].items() if count)
    return np.concatenate([open_segments(packed, split, length) for length in lengths])


def spelled_bytes(packed: Input, split: str, tokenizer: FastTokenizer) -> Iterator[int]:
    """Yield the UTF-8 bytes of each segment's supervised tokens, in the order of `source_rows`."""
    for length in sorted(int(length) for length, count in packed.meta["rows"][split].items() if count):
        columns = open_chunks(packed, split, length)
        for labels, segments in zip(columns["labels"], columns["segment_ids"], strict=True):
            supervised = labels != IGNORED
            ids = [labels[supervised & (segments == number)].tolist() for number in range(1, int(segments.max()) + 1)]
            yield from (len(text.encode()) for text in tokenizer.tokenizer.decode_batch(ids, skip_special_tokens=True))
