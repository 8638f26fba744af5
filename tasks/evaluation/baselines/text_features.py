"""TF-IDF of words and of characters, by scikit-learn: what the baselines read of texts.

The limits are numbers of rows, never seconds: equal rows have equal baselines on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trnflow.tasks.evaluation.baselines.result import LeftOut

CHARACTERS = 8_000_000
"""The most characters of texts that are cut into groups of characters: a second of one core a million."""
WORK = 50_000_000
"""The most numbers that are read for each pass of a solver: about 10 s of one core in all."""
WORDS = r"(?u)\b\w+\b"

Cost = Callable[[list[Any]], float]
"""(matrices of texts) -> numbers that are read for what follows."""


def text_features(train: Sequence[str], others: Sequence[Sequence[str]], cost: Cost) -> tuple[str, list[Any]]:
    """Return what the features are of, and a sparse matrix [texts, features] of `train` and of each of `others`.

    train: the texts in which words are counted. Characters are left out where they cost more than WORK. Raises LeftOut if
    words alone do.
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    sides = (train, *others)
    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=WORDS, sublinear_tf=True)
    choices = [("words", _matrices(words, sides))]
    if sum(len(text) for texts in sides for text in texts) <= CHARACTERS:
        characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True)
        pairs = zip(choices[0][1], _matrices(characters, sides), strict=True)
        choices.insert(0, ("words and characters", [hstack(pair).tocsr() for pair in pairs]))
    for name, matrices in choices:
        if cost(matrices) <= WORK and matrices[0].nnz:
            return name, matrices
    if choices[0][1][0].nnz == 0:
        raise LeftOut("the texts of train hold no word")
    raise LeftOut(f"{len(train):,} rows of train are too many for it")


def _matrices(vectorizer: Any, sides: Sequence[Sequence[str]]) -> list[Any]:
    """Return a sparse matrix of each side, without columns if no text of the first has what the vectorizer counts."""
    from scipy.sparse import csr_matrix

    if not any(map(vectorizer.build_analyzer(), sides[0])):
        return [csr_matrix((len(texts), 0)) for texts in sides]
    vectorizer.fit(sides[0])
    return [vectorizer.transform(texts) if texts else csr_matrix((0, len(vectorizer.vocabulary_))) for texts in sides]
