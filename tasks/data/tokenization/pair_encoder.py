"""Encode rows of two texts by the tokenizer's own template of a pair, with the type of each token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.data.texts import PAIR
from trnflow.tasks.data.tokenization.encoders import ClassEncoder, Encoded, frame_rows, remaining, targets_of
from trnflow.tasks.data.tokenization.token_shards import texts_of
from trnflow.tasks.data.tokenization.word_encoder import gather

if TYPE_CHECKING:
    import pyarrow as pa

    from trnflow.tasks.data.tokenization.encoders import Longs
    from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer

Frame = tuple[list[int], list[int]]
"""What stands before and after a text."""


class PairFrame(NamedTuple):
    """Special tokens around the first and the second text, and the same with each token's type.

    inside: the types of the tokens of both texts."""

    ids: tuple[Frame, Frame]
    types: tuple[Frame, Frame]
    inside: tuple[int, int]

    @property
    def size(self) -> int:
        return sum(len(side) for frame in self.ids for side in frame)


def pair_frame(loaded: FastTokenizer) -> PairFrame:
    """Read the template from an encoded example."""
    encoded = loaded.tokenizer.encode("a", "a")
    texts = encoded.sequence_ids
    first, second = texts.index(0), texts.index(1)
    end, last = first + texts.count(0), second + texts.count(1)

    def frames(values: list[int]) -> tuple[Frame, Frame]:
        return (values[:first], values[end:second]), ([], values[last:])

    types = encoded.type_ids
    return PairFrame(frames(encoded.ids), frames(types), (types[first], types[second]))


def longest_first(first: Longs, second: Longs, most: int) -> tuple[Longs, Longs]:
    """Return the sizes of two texts cut to `most` tokens together, as transformers' `longest_first` does: the longer one
    loses tokens until both are equal."""
    import numpy as np

    fits = first + second <= most
    short = np.minimum(first, second)
    # where the shorter one takes half or more, both get half, of an odd number the longer one the last
    short = np.minimum(short, most // 2)
    long = most - short
    is_first = first <= second
    cut = np.where(is_first, short, long), np.where(is_first, long, short)
    return np.where(fits, first, cut[0]), np.where(fits, second, cut[1])


class PairEncoder(ClassEncoder):
    """Encodes a table with the columns `text`, `text_pair` and `label`."""

    def __init__(self, loaded: FastTokenizer, max_length: int, overlong: str) -> None:
        super().__init__(loaded, max_length, overlong)
        self._pair = pair_frame(loaded)

    def encode(self, rows: pa.Table) -> Encoded:
        import numpy as np

        seconds = rows.select([PAIR]).rename_columns(["text"])
        texts = [texts_of(rows), texts_of(seconds)]
        ids, bounds = zip(*map(self._ids, texts), strict=True)
        sizes = [np.diff(each) for each in bounds]
        lengths = sizes[0] + sizes[1] + self._pair.size
        kept = np.arange(len(lengths))
        if self._overlong == "truncate":
            sizes = [*longest_first(sizes[0], sizes[1], max(self._max_length - self._pair.size, 0))]
        elif self._overlong == "drop":
            kept = kept[lengths <= self._max_length]
        cut = [
            gather(each, remaining(at, size, self._side)[kept], size[kept])
            for each, at, size in zip(ids, bounds, sizes, strict=True)
        ]
        types = [np.full(len(each), kind, np.uint8) for each, kind in zip(cut, self._pair.inside, strict=True)]
        kept_sizes = [size[kept] for size in sizes]
        joined, total = _joined(cut, kept_sizes, self._pair.ids)
        marks, _ = _joined(types, kept_sizes, self._pair.types)
        forged = [*{row: each for text in reversed(texts) for row, each in self._forged(text)}.items()]
        return Encoded(joined, total, targets_of(rows)[kept], kept, lengths, forged, types=marks)


def _joined(values: list[Any], sizes: list[Longs], frames: tuple[Frame, Frame]) -> tuple[Any, Longs]:
    """Return each row's first and second values in their frames, one row after another, and the rows' sizes."""
    import numpy as np

    whole = [frame_rows(*each) for each in zip(values, sizes, frames, strict=True)]
    per_text = np.stack([size for _, size in whole], axis=1)
    is_second = np.repeat(np.tile([False, True], len(per_text)), per_text.ravel())
    joined = np.empty(len(is_second), dtype=values[0].dtype)
    joined[~is_second], joined[is_second] = whole[0][0], whole[1][0]
    return joined, per_text.sum(axis=1)
