"""Batches of texts to rows of token ids: classified texts with a label, causal texts with a loss mask.

A row longer than `max_length` comes back cut, in pieces or whole, as `overlong` asks; whether it was longer is told.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.text.tokenizer import FastTokenizer

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Ints = np.ndarray[Any, np.dtype[np.int32]]
    Extra = np.ndarray[Any, np.dtype[Any]]


class Piece(NamedTuple):
    """ids: int32 [tokens]; extra: int32 [1], the label, or uint8 [tokens], 1 where the token is trained on."""

    ids: Ints
    extra: Extra


class Encoded(NamedTuple):
    """length: tokens of the row (of what is left, when it was cut); too_long: it exceeded max_length."""

    length: int
    too_long: bool
    pieces: list[Piece]


class ClassEncoder:
    """Texts as the tokenizer frames them ([CLS] text [SEP]); when cut, the frame stays. extra, extra_type: what comes with
    the ids, and its dtype."""

    extra, extra_type = "labels", "<i4"

    def __init__(self, loaded: FastTokenizer, max_length: int, overlong: str) -> None:
        self._tokenizer = loaded.tokenizer
        self._max_length = max_length
        if overlong == "truncate":
            self._tokenizer.enable_truncation(max_length)

    def encode(self, batch: pa.RecordBatch) -> Iterator[Encoded]:
        """batch: columns text and label."""
        import numpy as np

        labels = batch.column("label").to_numpy().astype(np.int32)
        encodings = self._tokenizer.encode_batch_fast(batch.column("text").to_pylist())
        for row, encoding in enumerate(encodings):
            ids = np.array(encoding.ids, dtype=np.int32)
            too_long = len(ids) > self._max_length or bool(encoding.overflowing)
            yield Encoded(len(ids), too_long, [Piece(ids, labels[row : row + 1])])


class CausalEncoder:
    """prefix (bos, or nothing), the joined parts, eos; texts that are `framed` hold all of that themselves."""

    extra, extra_type = "loss_mask", "|u1"

    def __init__(
        self, loaded: FastTokenizer, max_length: int, overlong: str, *, add_eos: bool, framed: bool = False
    ) -> None:
        import numpy as np

        eos = loaded.id_of("eos_token") if add_eos and not framed else None
        self._tokenizer = loaded.tokenizer
        self._max_length = max_length
        self._split = overlong == "split"
        self._cut = overlong == "truncate"
        self._prefix = np.array([] if framed else loaded.prefix(), dtype=np.int32)
        self._suffix = np.array([] if eos is None else [eos], dtype=np.int32)

    def encode(self, batch: pa.RecordBatch) -> Iterator[Encoded]:
        """batch: the column parts, list<struct<text, train>>."""
        rows = batch.column("parts").to_pylist()
        texts = ["".join(part["text"] for part in parts) for parts in rows]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        for parts, encoding in zip(rows, encodings, strict=True):
            whole = self._whole(parts, encoding)
            length = len(whole.ids)
            yield Encoded(length, length > self._max_length, self._pieces(whole))

    def _whole(self, parts: list[dict[str, Any]], encoding: Any) -> Piece:
        import numpy as np

        ids = np.concatenate([self._prefix, np.array(encoding.ids, dtype=np.int32), self._suffix])
        mask = np.zeros(len(ids), dtype=np.uint8)
        first = len(self._prefix)
        mask[first : first + len(encoding)] = trained_tokens(parts, len(encoding), encoding.token_to_chars)
        mask[first + len(encoding) :] = parts[-1]["train"]
        return Piece(ids, mask)

    def _pieces(self, whole: Piece) -> list[Piece]:
        size = self._max_length
        if self._cut:
            return [Piece(whole.ids[:size], whole.extra[:size])]
        if self._split:
            starts = range(0, len(whole.ids), size)
            return [Piece(whole.ids[at : at + size], whole.extra[at : at + size]) for at in starts]
        return [whole]


Encoder = ClassEncoder | CausalEncoder


def encoder_type(task: str) -> type[ClassEncoder] | type[CausalEncoder]:
    return CausalEncoder if task == "causal_lm" else ClassEncoder


def trained_tokens(parts: list[dict[str, Any]], count: int, span_of: Callable[[int], tuple[int, int]]) -> Extra:
    """uint8 [count]: 1 where a token's characters hold one that is trained on.

    span_of: a token's characters in the joined text, [start, end), in order. Only each part's edges are looked up, by
    bisection: fetching all spans costs as much as tokenising. A token without characters of its own (trimmed whitespace)
    goes with the character before it, the very first with the one after it."""
    import numpy as np

    def start_of(token: int) -> int:
        start, end = span_of(token)
        return start if start < end else max(end - 1, 0)

    def end_of(token: int) -> int:
        return max(span_of(token)[1], 1)

    mask = np.zeros(count, dtype=np.uint8)
    start = 0
    for part in parts:
        end = start + len(part["text"])
        if part["train"] and start < end:
            first = bisect_right(range(count), start, key=end_of)
            mask[first : bisect_left(range(count), end, key=start_of)] = 1
        start = end
    return mask
