"""Compare generated texts with the answers that the data has for their prompts: exact match and ROUGE.

ROUGE as the package rouge_score computes it without a stemmer, except that letters outside a-z count as well: texts are
lowercased and cut into runs of letters and digits; each figure is an F1 of matches.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

WORD = re.compile(r"[^\W_]+")


def is_exact_match(generated: str, answer: str) -> bool:
    """Return whether two texts are equal, apart from white space at their beginnings and ends."""
    return generated.strip() == answer.strip()


class Rouge(NamedTuple):
    """ROUGE scores from 0 to 1: of shared words, of shared pairs of words, and of the longest common subsequence."""

    words: float
    pairs: float
    sequence: float


def rouge(generated: str, answer: str) -> Rouge:
    """Return the ROUGE scores of a generated text against the answer."""
    ours, theirs = (WORD.findall(text.lower()) for text in (generated, answer))
    return Rouge(
        _of_ngrams(ours, theirs, 1),
        _of_ngrams(ours, theirs, 2),
        _f1(_longest_common(ours, theirs), len(ours), len(theirs)),
    )


def _of_ngrams(made: list[str], wanted: list[str], size: int) -> float:
    ours, theirs = (
        Counter(tuple(words[at : at + size]) for at in range(len(words) - size + 1)) for words in (made, wanted)
    )
    return _f1((ours & theirs).total(), ours.total(), theirs.total())


def _f1(shared: int, made: int, wanted: int) -> float:
    return 2 * shared / (made + wanted) if shared else 0.0


def _longest_common(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        diagonal = 0
        for at, candidate in enumerate(other, 1):
            diagonal, row[at] = row[at], diagonal + 1 if word == candidate else max(row[at], row[at - 1])
    return row[-1]
