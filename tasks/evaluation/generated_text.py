"""Compare generated texts with the data's answers: exact match, SQuAD's F1, ROUGE and JSON.

ROUGE as rouge_score computes it without a stemmer, except that letters outside a-z count as well.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from typing import NamedTuple

WORD = re.compile(r"[^\W_]+")
ARTICLE = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def is_exact_match(generated: str, answer: str) -> bool:
    """Return whether two texts are equal, white space at their ends aside."""
    return generated.strip() == answer.strip()


def json_valid(generated: str, answer: str) -> float | None:
    """Return whether a text is JSON, as its answer is; None where that is not."""
    return float(is_json(generated)) if is_json(answer) else None


def token_f1(generated: str, answer: str) -> float:
    """Return the F1 of shared words as SQuAD counts it: without case, ASCII's punctuation and English articles."""
    ours, theirs = (ARTICLE.sub(" ", text.lower().translate(NO_PUNCTUATION)).split() for text in (generated, answer))
    return _of_ngrams(ours, theirs, 1) if ours and theirs else float(ours == theirs)


def is_json(text: str) -> bool:
    """Return whether a text is a JSON object or array, alone or in a block of Markdown code."""
    # chat models like to answer so
    block = re.fullmatch(r"```(?:json)?\n(.*)\n```", text.strip(), re.DOTALL)
    try:
        return isinstance(json.loads(block[1] if block else text), dict | list)
    except (ValueError, RecursionError):
        return False


class Rouge(NamedTuple):
    """F1 of shared words, of shared pairs of words, and of the longest common subsequence: 0 to 1."""

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


def rouge_of_words(generated: str, answer: str) -> float:
    return rouge(generated, answer).words


def rouge_of_pairs(generated: str, answer: str) -> float:
    return rouge(generated, answer).pairs


def rouge_of_sequence(generated: str, answer: str) -> float:
    return rouge(generated, answer).sequence


def _of_ngrams(generated: list[str], wanted: list[str], size: int) -> float:
    ours, theirs = (
        Counter(tuple(words[at : at + size]) for at in range(len(words) - size + 1)) for words in (generated, wanted)
    )
    return _f1((ours & theirs).total(), ours.total(), theirs.total())


def _f1(shared: int, generated: int, wanted: int) -> float:
    return 2 * shared / (generated + wanted) if shared else 0.0


def _longest_common(first: list[str], second: list[str]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0
        for at, candidate in enumerate(second, 1):
            diagonal, row[at] = row[at], diagonal + 1 if word == candidate else max(row[at], row[at - 1])
    return row[-1]
