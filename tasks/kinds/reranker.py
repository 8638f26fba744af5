"""The task `reranker`: how well a passage answers a query, as a cross-encoder with one output learns it.

Metrics are means over queries. A row's target is its relevance, and the query's number in two floats of 24 bits each: so the
rows of a query are found again wherever targets go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.kind import Metric, Row
from trnflow.tasks.kinds.regression import CLOSE, number_in
from trnflow.tasks.kinds.targets import Outputs, TargetKind, loss_metric, value_of

if TYPE_CHECKING:
    from torch import Tensor

PLACES = 10
"""The first places of a ranking that count."""
BITS = 24
"""The integers that a float32 holds exactly."""


def number_of_query(query: str) -> tuple[float, float]:
    """Return a number of 48 bits in two floats."""
    number = int.from_bytes(hashlib.sha256(query.encode()).digest()[:6])
    return float(number >> BITS), float(number & (1 << BITS) - 1)


def rows_of_queries(expected: Any) -> list[Any]:
    """Return the rows of each query, ascending. expected: float32 [rows, 3]."""
    import numpy as np

    _, numbers = np.unique(expected[:, 1:], axis=0, return_inverse=True)
    order = np.argsort(numbers.ravel(), kind="stable")
    return np.split(order, np.cumsum(np.bincount(numbers.ravel()))[:-1])


def place_of_first(relevance: Any, values: Any) -> int:
    """Return the place, from 1, of the first relevant passage, of equal values the last; 0 without one."""
    relevant = relevance >= 0.5
    return 1 + int((values[~relevant] >= values[relevant].max()).sum()) if relevant.any() else 0


def reciprocal_rank(relevance: Any, values: Any) -> float:
    place = place_of_first(relevance, values)
    return 1 / place if 0 < place <= PLACES else 0.0


def discounted_gain(relevance: Any, values: Any) -> float:
    """Return NDCG as scikit-learn's `ndcg_score`: passages of equal value share the mean of their gains."""
    import numpy as np

    discount = 1 / np.log2(np.arange(len(values)) + 2)
    discount[PLACES:] = 0
    best = float(np.sort(relevance)[::-1].dot(discount))
    _, group, counts = np.unique(-values, return_inverse=True, return_counts=True)
    gains = np.bincount(group, relevance) / counts
    ends = np.cumsum(discount)[np.cumsum(counts) - 1]
    return float((gains * np.diff(ends, prepend=0)).sum()) / best if best else 0.0


def _by_query(function: Callable[[Any, Any], float]) -> Callable[[Outputs], Any]:
    """Return the columns of a mean over queries: its value and 1 in a query's first row, 0 in the others."""

    def columns(outputs: Outputs) -> Any:
        import numpy as np

        found = np.zeros((len(outputs.loss), 2))
        for rows in rows_of_queries(outputs.expected):
            found[rows[0]] = function(outputs.expected[rows, 0].astype(np.float64), outputs.values[rows, 0]), 1
        return found

    return columns


def _mean(sums: Any, rows: Any) -> Any:
    # a resample may have no query's first row
    return sums[..., 0] / sums[..., 1].clip(min=1)


class Reranker(TargetKind):
    name = "reranker"
    opener = "sentence_transformers.CrossEncoder(FOLDER)"
    problem_type = "multi_label_classification"  # one output, yes or no: the binary cross entropy
    queries = True
    looks_at_targets = True
    metrics = (
        Metric("ndcg_at_10", _by_query(discounted_gain), _mean, hub="ndcg", may_promote=True, is_default=True),
        Metric("mrr_at_10", _by_query(reciprocal_rank), _mean, hub="mrr", may_promote=True),
        loss_metric(),
    )
    plots = {"first_relevant.png": "the place of each query's first relevant passage"}
    answers = {"text": "string", "text_pair": "string", "scores": "map"}

    def target_shape(self, rows: int, length: int, outputs: int) -> tuple[int, ...]:
        return (rows, 3)

    def check_settings(self, settings: Any) -> None:
        if not settings.text_pair:
            raise ValueError("a reranker reads a query and a passage: set `text_pair` to the column of the passage")
        if settings.labels or len(settings.targets) != 1:
            raise ValueError(
                "a reranker learns one number from 0 to 1: `target` is one column, and `labels` is for multi_label"
            )

    def foreseen(self, settings: Any) -> list[str]:
        return [*settings.targets]

    def labels_of(self, settings: Any, train: Callable[[], Iterable[Row]], nested: Iterable[str]) -> list[str]:
        target, seen = self.target_of(settings, [], nested), set[bool]()
        for number, row in enumerate(train(), 1):
            seen.add(target(row, f"split train row {number}")[0] >= 0.5)
        if len(seen) == 1:
            raise DataError(
                f"format.target: all passages of train are {'' if True in seen else 'not '}relevant ({settings.target})",
                "give rows of both kinds, or name another column",
            )
        return [*settings.targets]

    def target_of(self, settings: Any, labels: list[str], nested: Iterable[str]) -> Callable[[Row, str], Any]:
        (column,) = settings.targets

        def target(row: Row, where: str) -> list[float]:
            value = value_of(row, column, nested, where)
            relevance = float(value) if isinstance(value, bool) else number_in(value, column, where)
            if not 0 <= relevance <= 1:
                raise DataError(
                    f"{where}: {column} is {relevance:g}, no relevance from 0 to 1", "divide it, or repair the row"
                )
            return [relevance]

        return target

    def example(self, example: Row) -> Row:
        return {**example, "label": [*example["label"], *number_of_query(example["text"])]}

    def remarks(self, targets: Any, train: Any) -> Iterator[str]:
        rows = rows_of_queries(targets)
        if none := sum(not (targets[of, 0] >= 0.5).any() for of in rows):
            yield f"{none} of {len(rows)} queries have no relevant passage: their MRR and NDCG are 0"
        if alone := sum(len(of) == 1 for of in rows):
            yield f"{alone} of {len(rows)} queries have one passage: nothing is ranked"

    def shown(self, target: Any, labels: list[str]) -> str:
        return f"{labels[0]} {target[0]:.4g}"

    def each_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        # torch's binary_cross_entropy_with_logits, without torch in the keys of the data stages
        return logits.clamp(min=0) - logits * targets[:, :1] + (-logits.abs()).exp().log1p()

    def values_of(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def agree(self, first: Tensor, second: Tensor) -> Tensor:
        return ((first.sigmoid() - second.sigmoid()).abs() <= CLOSE).all(-1)

    def line(self, answer: Meta) -> str:
        return "  ".join(f"{value:.3f}" for value in answer["scores"].values())

    def table(self, outputs: Outputs, labels: list[str]) -> list[Meta]:
        rows = rows_of_queries(outputs.expected)
        lacking = sum(not (outputs.expected[of, 0] >= 0.5).any() for of in rows)
        return [{"label": labels[0], "queries": len(rows), "passages": len(outputs.loss), "without_relevant": lacking}]

    def row_answers(self, outputs: Outputs, labels: list[str]) -> dict[str, list[Any]]:
        return {"label": [*outputs.expected[:, :1]], "predicted": [*outputs.values[:, :1]]}

    def draw(self, outputs: Outputs, labels: list[str], folder: Path, plots: Any) -> None:
        rows = rows_of_queries(outputs.expected)
        places = [place_of_first(outputs.expected[of, 0], outputs.values[of, 0]) for of in rows]
        shares = {str(place): places.count(place) for place in range(1, PLACES + 1)}
        shares |= {"later": sum(place > PLACES for place in places), "none": places.count(0)}
        names, values = [*shares][::-1], [count / len(rows) for count in shares.values()][::-1]
        plots.bars(
            names, values, "share of queries", "place of the first relevant passage", folder / "first_relevant.png"
        )
