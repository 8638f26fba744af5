"""The most frequent tag of each word."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Any

from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.evaluation.baselines.examples import Examples
from trnflow.tasks.evaluation.baselines.result import Baseline
from trnflow.tasks.kinds.kind import IGNORED, Row


def words(rows: Examples) -> Baseline:
    """Predict of each word its most frequent tag in train, of an unknown word the most frequent of all; of equally frequent
    ones the first in the order of outputs."""
    import numpy as np

    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for row in rows.train:
        for word, tag in _tagged(row):
            counts[word][tag] += 1
    usual = {word: _most(tags) for word, tags in counts.items()}
    other = _most(Counter(tag for row in rows.train for _, tag in _tagged(row)))
    pairs = zip(rows.evaluated, _packed_tags(rows), strict=True)
    read = chain.from_iterable(_read_words(row, tags) for row, tags in pairs)
    decided = np.array([usual.get(word, other) for word in read], np.int32)
    return Baseline("the most frequent tag of each word", len(rows.train), {"decided": decided})


def _tagged(row: Row) -> Iterator[tuple[str, int]]:
    return ((row["text"][word["start"] : word["end"]], word["label"]) for word in row["label"])


def _most(counts: Counter[int]) -> int:
    return min(counts, key=lambda tag: (-counts[tag], tag))


def _packed_tags(rows: Examples) -> Iterator[list[int]]:
    """Yield the tags of the words of each evaluated row that the model reads."""
    counts = rows.packed.meta["rows"][rows.split]
    for length in sorted(int(length) for length, count in counts.items() if count):
        for tags in open_chunks(rows.packed, rows.split, length)["labels"]:
            yield tags[tags != IGNORED].tolist()


def _read_words(row: Row, tags: list[int]) -> Iterator[str]:
    """Yield the word of each tag: words beyond `tokenize.max_length`, and those without a token, have none."""
    words: Iterator[Any] = _tagged(row)
    for tag in tags:
        yield next(word for word, own in words if own == tag)
