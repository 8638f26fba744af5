"""How alike the texts of a row are: by TF-IDF's cosine, by BM25, or by vectors of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnflow.tasks.data.texts import NEGATIVE, PAIR
from trnflow.tasks.evaluation.baselines.examples import Examples
from trnflow.tasks.evaluation.baselines.result import Baseline, LeftOut
from trnflow.tasks.evaluation.baselines.text_features import WORDS, text_features
from trnflow.tasks.kinds.embedding import Corpus, is_scored
from trnflow.tasks.kinds.kind import Row

K1, B = 1.5, 0.75
"""BM25's usual constants."""


def scored_pairs(rows: Examples) -> Baseline:
    """Predict numbers of two texts by a straight line through their cosines, fitted on train."""
    import numpy as np

    method, sides = _vectors([rows.train, rows.evaluated], lambda matrices: sum(each.nnz for each in matrices))
    known, asked = (cosines(side, 2) for side in sides)
    wanted = np.array([row["label"] for row in rows.train])
    x = known - known.mean()
    slopes = x @ (wanted - wanted.mean(0)) / max(float(x @ x), 1e-12)
    values = (asked - known.mean())[:, None] * slopes + wanted.mean(0)
    return Baseline(f"{method}, a straight line", len(rows.train), {"values": values.astype(np.float32)})


def belonging(rows: Examples) -> Baseline:
    """Rank texts by their cosine with an anchor; of pairs with scores give the cosine."""
    import numpy as np

    expected = np.array([row["label"] for row in rows.evaluated], np.float32)
    method, (_, vectors) = _vectors([rows.train, rows.evaluated], _ranked)
    return Baseline(method, len(rows.train), of_vectors("embedding", expected, vectors), orders=True)


def passages(rows: Examples) -> Baseline:
    """Score passages by BM25, as Lucene computes it, among the passages of the evaluated rows."""
    import numpy as np
    from scipy.sparse import diags
    from sklearn.feature_extraction.text import CountVectorizer

    given = [row[PAIR] for row in rows.evaluated]
    counted = CountVectorizer(token_pattern=WORDS)
    if not any(map(counted.build_analyzer(), given)):
        raise LeftOut("the passages hold no word")
    distinct = sorted({*given})
    counts = counted.fit_transform(distinct).astype(np.float64)
    length, having = np.asarray(counts.sum(1)).ravel(), np.bincount(counts.indices, minlength=counts.shape[1])
    rarity = np.log1p((len(distinct) - having + 0.5) / (having + 0.5))
    below = np.repeat(K1 * (1 - B + B * length / length.mean()), np.diff(counts.indptr))
    counts.data /= counts.data + below
    places = {text: at for at, text in enumerate(distinct)}
    asked = counted.transform([row["text"] for row in rows.evaluated])
    scores = (counts @ diags(rarity))[[places[text] for text in given]].multiply(asked).sum(1)
    return Baseline("BM25", 0, {"values": np.asarray(scores, np.float32).reshape(-1, 1)}, orders=True)


def of_vectors(task: str, expected: Any, vectors: Any) -> dict[str, Any]:
    """Return the arrays of a `Baseline`.

    expected: float32 [rows, outputs]; vectors: of the rows' texts, [rows x texts, dimensions], of length 1.
    """
    import numpy as np

    cosine = cosines(vectors, vectors.shape[0] // len(expected)).astype(np.float32)[:, None]
    if task != "embedding":
        outputs = expected.shape[1] if task == "regression" else 1
        return {"values": np.repeat(cosine, outputs, axis=1)}
    if is_scored(expected):
        return {"decided": cosine}
    places = Corpus(expected, vectors).places().astype(np.float32)
    return {"decided": cosine, "values": places[:, None]}


def cosines(vectors: Any, texts: int) -> Any:
    """Return the cosine of each row's first two texts, float64 [rows]. vectors: as `of_vectors`; texts: of a row."""
    import numpy as np

    first, second = vectors[0::texts], vectors[1::texts]
    product = first.multiply(second) if hasattr(first, "multiply") else first.astype(np.float64) * second
    return np.asarray(product.sum(1)).ravel()


def texts_apart(rows: Sequence[Row]) -> list[str]:
    """Return the texts of each row, one after another."""
    return [row[name] for row in rows for name in ("text", PAIR, NEGATIVE) if name in row]


def _vectors(sides: Sequence[Sequence[Row]], cost: Any) -> tuple[str, list[Any]]:
    """Return the method, and of each side the TF-IDF of its rows' texts, of length 1. The first is of train."""
    from sklearn.preprocessing import normalize

    apart = [texts_apart(rows) for rows in sides]
    name, (_, *matrices) = text_features(sorted({*apart[0]}), apart, cost)
    return f"cosine of TF-IDF of {name}", [normalize(matrix) for matrix in matrices]


def _ranked(matrices: Sequence[Any]) -> float:
    """Return the products of numbers that comparing all texts of the last matrix with each other takes."""
    import numpy as np

    asked = matrices[-1]
    of_words = np.bincount(asked.indices, minlength=asked.shape[1]).astype(np.float64)
    return float((of_words**2).sum()) + float(asked.shape[0]) ** 2
