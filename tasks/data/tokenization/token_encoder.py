"""Encode texts whose words are labelled as rows of token ids with a label for each token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.tokenization.encoders import ClassEncoder
from trnflow.tasks.data.tokenization.token_shards import Texts
from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer
from trnflow.tasks.kinds.kind import IGNORED

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    from trnflow.tasks.system.arrays import Int32s


class TokenEncoder(ClassEncoder):
    """Encodes texts whose words are labelled: `label` is list<struct<start, end, label>>, characters and a number. The
    first token of a word has its number, others IGNORED."""

    def __init__(self, loaded: FastTokenizer, max_length: int, overlong: str) -> None:
        super().__init__(loaded, max_length, overlong)
        self._tokenizer = loaded.tokenizer

    def _tokens(self, texts: Texts, rows: pa.Table) -> tuple[Int32s, Longs, Int32s | None]:
        import numpy as np

        # places of tokens are of whole texts, so no word is tokenised apart
        given = rows.column("text").to_pylist()
        encodings = self._tokenizer.encode_batch(given, add_special_tokens=False)
        words = rows.column("label").to_pylist()
        labels = [
            first_pieces(text, encoding.offsets, own)
            for text, encoding, own in zip(given, encodings, words, strict=True)
        ]
        bounds = np.cumsum([0, *map(len, labels)])
        ids = [np.array(encoding.ids, np.int32) for encoding in encodings]
        return np.concatenate(ids), bounds, np.array([label for row in labels for label in row], np.int32)

    def places(self, text: str, tokens: int) -> list[tuple[int, int] | None]:
        """Return first character and end of each token of an encoded row, None of a special token."""
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        before, after = map(len, self._frame)
        kept = tokens - before - after
        first = len(offsets) - kept if self._side == "left" else 0
        return [*[None] * before, *offsets[first : first + kept], *[None] * after]


def first_pieces(text: str, offsets: list[tuple[int, int]], words: list[dict[str, int]]) -> list[int]:
    """Return a label for each token: that of the word in which it is the first to begin, else IGNORED.

    offsets: characters of tokens; words: {start, end, label}, ascending, apart.
    """
    labels, at = [IGNORED] * len(offsets), 0
    for token, (start, end) in enumerate(offsets):
        # some tokenizers count the blank before a word to it
        while start < end and text[start].isspace():
            start += 1
        while at < len(words) and words[at]["end"] <= start:
            at += 1
        if start < end and at < len(words) and words[at]["start"] <= start:
            labels[token] = words[at]["label"]
            at += 1
    return labels
