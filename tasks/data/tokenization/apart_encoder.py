"""Encode rows of several texts that are read apart: each in the tokenizer's special tokens, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnflow.tasks.data.texts import NEGATIVE, PAIR
from trnflow.tasks.data.tokenization.encoders import ClassEncoder, Encoded, frame_rows, remaining, targets_of
from trnflow.tasks.data.tokenization.token_shards import texts_of
from trnflow.tasks.data.tokenization.word_encoder import gather

if TYPE_CHECKING:
    import pyarrow as pa


class ApartEncoder(ClassEncoder):
    """Encodes a table with the columns `text`, `text_pair`, perhaps `negative`, and `label`. Truncates each text, as the
    programs do that read one at a time. The types of tokens are the numbers of their texts."""

    def encode(self, rows: pa.Table) -> Encoded:
        import numpy as np

        names = [name for name in ("text", PAIR, NEGATIVE) if name in rows.column_names]
        texts = [texts_of(rows.select([name]).rename_columns(["text"])) for name in names]
        ids, bounds = zip(*map(self._ids, texts), strict=True)
        sizes = np.stack([np.diff(each) for each in bounds], axis=1)
        frame = sum(map(len, self._frame))
        lengths = sizes.max(1) + frame
        kept = np.arange(len(lengths))
        if self._overlong == "truncate":
            sizes = np.minimum(sizes, max(self._max_length - frame, 0))
        elif self._overlong == "drop":
            kept = kept[lengths <= self._max_length]
        framed = [
            frame_rows(gather(each, remaining(at, size, self._side)[kept], size[kept]), size[kept], self._frame)
            for each, at, size in zip(ids, bounds, sizes.T, strict=True)
        ]
        of_texts = np.stack([size for _, size in framed], axis=1)
        which = np.repeat(np.tile(np.arange(len(names)), len(of_texts)), of_texts.ravel())
        joined = np.empty(len(which), dtype=ids[0].dtype)
        for number, (tokens, _) in enumerate(framed):
            joined[which == number] = tokens
        forged = [*{row: each for text in reversed(texts) for row, each in self._forged(text)}.items()]
        targets, types = targets_of(rows)[kept], which.astype(np.uint8)
        return Encoded(joined, of_texts.sum(1), targets, kept, lengths, forged, types=types)
