"""The registry of metrics: each is one entry here, a function with its name, task and flags.

The order of entries is their order everywhere. Functions stand in `metrics`, a file each; one of task `classification` reads
`ClassPredictions`, one of `causal_lm` `RowSums`, one with `of_texts` a generated text and its answer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import CodeError
from trnflow.tasks.evaluation.generated_text import (
    is_exact_match,
    json_valid,
    rouge_of_pairs,
    rouge_of_sequence,
    rouge_of_words,
    token_f1,
)
from trnflow.tasks.evaluation.intervals import CONFIDENCE, RESAMPLES, SEED, interval, ratio_interval, share_interval
from trnflow.tasks.evaluation.metrics.accuracy import accuracy as accuracy_of_rows
from trnflow.tasks.evaluation.metrics.auc import area_under_curve
from trnflow.tasks.evaluation.metrics.bits_per_byte import bits_per_byte
from trnflow.tasks.evaluation.metrics.ece import expected_calibration_error
from trnflow.tasks.evaluation.metrics.f1_macro import f1_macro as f1_macro_of_rows
from trnflow.tasks.evaluation.metrics.f1_weighted import f1_weighted as f1_weighted_of_rows
from trnflow.tasks.evaluation.metrics.log_loss import log_loss_of_probabilities
from trnflow.tasks.evaluation.metrics.mcc import matthews_correlation
from trnflow.tasks.evaluation.metrics.perplexity import perplexity
from trnflow.tasks.evaluation.metrics.row_sums import RowSums
from trnflow.tasks.kinds.kind import Kind, Metric
from trnflow.tasks.kinds.registry import KINDS

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.columns import ClassPredictions
    from trnflow.tasks.system.arrays import Floats, Ints

BLOCK = 1 << 22
"""Counts of resampled confusion matrices that are held at once; bounds memory."""

TRAINING = ("train_loss", "eval_loss", "eval_accuracy")
"""The metrics that stage train reports, which tables and MLflow show after those of an evaluation."""


class Matrices:
    """Confusion matrices of one set of classes: int64 [matrices, true class, predicted class]."""

    def __init__(self, counts: Ints) -> None:
        self.counts = counts

    @cached_property
    def hits(self) -> Any:
        import numpy as np

        return np.diagonal(self.counts, axis1=1, axis2=2)

    @cached_property
    def support(self) -> Any:
        return self.counts.sum(axis=2)

    @cached_property
    def present(self) -> Any:
        """Rows of a class plus rows predicted as the class."""
        return self.support + self.counts.sum(axis=1)

    @cached_property
    def f1(self) -> Any:
        """float64 [matrices, classes]: 0 for a class that is neither true nor predicted in any row."""
        import numpy as np

        return np.divide(2 * self.hits, self.present, out=np.zeros(self.present.shape), where=self.present > 0)


@dataclass(frozen=True)
class Score:
    """A metric.

    Attributes:
        function: Returns the value; None where rows have none.
        place: File and line of the entry.
        hub: Type in the hub's model cards; these metrics also lead the report page.
        may_promote: Models may be compared by it: the function then reads no probabilities.
        is_default: The default of `promote.metric`.
        report_only: report.json alone has the metric.
        of_texts: The function reads a generated text and its answer; the metric is the mean.
        of_matrices: `Matrices` -> float64 [matrices], for intervals and fast resamples.
        ratio: Rows -> (above, below), both [rows], for the same.
        metric: Of a `Kind`: the same by sums of columns.
    """

    name: str
    task: str
    function: Callable[..., float | None]
    place: str
    less_is_better: bool = False
    hub: str | None = None
    may_promote: bool = False
    is_default: bool = False
    report_only: bool = False
    of_texts: bool = False
    of_matrices: Callable[[Matrices], Floats] | None = None
    ratio: Callable[[Any], tuple[Any, Any]] | None = None
    metric: Metric | None = None

    def __call__(self, *rows: Any) -> float | None:
        value = self.function(*rows)
        return None if value is None else float(value)


def _of_kind(kind: Kind, metric: Metric) -> Score:
    """Return a task's own metric as an entry."""

    def value(found: Any) -> float | None:
        of_rows = float(metric.of_sums(metric.columns(found).sum(0), len(found.loss)))
        return None if math.isnan(of_rows) else of_rows

    return Score(
        metric.name, kind.name, value, kind.__module__,
        less_is_better=metric.less_is_better, hub=metric.hub, may_promote=metric.may_promote, is_default=metric.is_default,
        metric=metric,
    )  # fmt: skip


SCORES: list[Score] = [_of_kind(kind, metric) for kind in KINDS.values() for metric in kind.metrics]


def score(name: str, task: str, **flags: Any) -> Callable[[Callable[..., float | None]], Score]:
    """Return a decorator that enters a function into SCORES. flags: of `Score`. Raises CodeError for an entry that
    exists."""
    caller = sys._getframe(1)
    place = f"{caller.f_code.co_filename}:{caller.f_lineno}"

    def enter(function: Callable[..., float | None]) -> Score:
        entry = Score(name, task, function, place, **flags)
        for other in SCORES:
            if other.task == task and (other.name == name or (other.is_default and entry.is_default)):
                what = f"the metric {name}" if other.name == name else "the default of promote.metric"
                raise CodeError(f"{what} of {task} is entered twice: {other.place} and {place}", "remove one entry")
        SCORES.append(entry)
        return entry

    return enter


def _loss_by_rows(found: ClassPredictions) -> tuple[Any, Any]:
    import numpy as np

    return found.loss, np.ones(len(found.loss))


accuracy = score(
    "accuracy", "classification", hub="accuracy", may_promote=True,
    of_matrices=lambda found: found.hits.sum(axis=1) / found.support.sum(axis=1),
)(accuracy_of_rows)  # fmt: skip
f1_weighted = score(
    "f1_weighted", "classification", hub="f1", may_promote=True, is_default=True,
    of_matrices=lambda found: (found.f1 * found.support).sum(axis=1) / found.support.sum(axis=1),
)(f1_weighted_of_rows)  # fmt: skip
f1_macro = score(
    "f1_macro", "classification", hub="f1", may_promote=True,
    of_matrices=lambda found: found.f1.sum(axis=1) / (found.present > 0).sum(axis=1),
)(f1_macro_of_rows)  # fmt: skip


@score("loss", "classification", less_is_better=True, hub="loss", may_promote=True, ratio=_loss_by_rows)
def class_loss(found: ClassPredictions) -> float:
    """Return the mean cross entropy in nats."""
    return float(found.loss.mean())


score("mcc", "classification", report_only=True)(matthews_correlation)
score("log_loss", "classification", less_is_better=True, report_only=True)(log_loss_of_probabilities)
score("ece", "classification", less_is_better=True)(expected_calibration_error)
score("auc", "classification", report_only=True)(area_under_curve)
score("perplexity", "causal_lm", less_is_better=True, hub="perplexity")(perplexity)
score(
    "bits_per_byte", "causal_lm", less_is_better=True, hub="bits_per_byte", may_promote=True, is_default=True,
    ratio=lambda rows: (rows.nll / math.log(2), rows.bytes),
)(bits_per_byte)  # fmt: skip


@score(
    "loss", "causal_lm", less_is_better=True, hub="loss", may_promote=True, ratio=lambda rows: (rows.nll, rows.tokens)
)
def token_loss(rows: RowSums) -> float:
    """Return the mean loss of a supervised token in nats."""
    return rows.total / max(int(rows.tokens.sum()), 1)


score("exact_match", "causal_lm", of_texts=True)(is_exact_match)
score("token_f1", "causal_lm", of_texts=True)(token_f1)
score("json_valid", "causal_lm", of_texts=True)(json_valid)
score("rougeL", "causal_lm", of_texts=True)(rouge_of_sequence)
score("rouge1", "causal_lm", of_texts=True, report_only=True)(rouge_of_words)
score("rouge2", "causal_lm", of_texts=True, report_only=True)(rouge_of_pairs)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    """Names once each. Of one that two tasks have, the last place counts."""
    return tuple(reversed(dict.fromkeys(reversed(tuple(names)))))


MAIN = _unique(entry.name for entry in SCORES if entry.hub)
"""The names of the metrics that lead tables and the report page."""

NAMES = (*MAIN, *_unique(e.name for e in SCORES if e.name not in MAIN and not e.report_only), *TRAINING)
"""The names of metrics in the order of tables and MLflow."""

PROMOTING = _unique(entry.name for entry in SCORES if entry.may_promote)
"""The values of `promote.metric`."""


def promoting(task: str) -> list[Score]:
    """Return the metrics by which models of a task may be compared, the default first."""
    return sorted((e for e in SCORES if e.task == task and e.may_promote), key=lambda entry: not entry.is_default)


def is_less_better(name: str) -> bool:
    """Return whether less of a metric is better, also of `eval_<metric>` as train reports it; True for unknown names."""
    return all(entry.less_is_better for entry in SCORES if entry.name == name.removeprefix("eval_"))


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of metrics in the order of NAMES, others last, as they come."""
    return sorted(names, key=lambda name: NAMES.index(name) if name in NAMES else len(NAMES))


def values_of(task: str, rows: Any) -> dict[str, float]:
    """Return {metric: value} of a split's rows: `ClassPredictions`, or of a language model `RowSums`."""
    values = {entry.name: entry(rows) for entry in SCORES if entry.task == task and not entry.of_texts}
    return {name: value for name, value in values.items() if value is not None}


def values_of_texts(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """Return the mean of each metric of generated texts over the pairs (generated, answer) that have it."""
    values = {entry.name: [entry.function(*pair) for pair in pairs] for entry in SCORES if entry.of_texts}
    known = {name: [value for value in of_pairs if value is not None] for name, of_pairs in values.items()}
    return {name: sum(of_pairs) / len(of_pairs) for name, of_pairs in known.items() if of_pairs}


def intervals_of(task: str, rows: Any, matrix: Ints | None = None) -> Meta:
    """Return [low, high] of each metric that has an interval, `confidence` and `resamples`. matrix: a classifier's."""
    ratios = {entry.name: entry.ratio(rows) for entry in SCORES if entry.task == task and entry.ratio}
    # drawing from a multinomial distribution is the same as drawing rows with replacement
    found: Meta = {}
    if matrix is not None:
        found = _of_resamples(task, matrix) | {accuracy.name: share_interval(int(matrix.trace()), int(matrix.sum()))}
    found |= {name: ratio_interval(*ratio) for name, ratio in ratios.items() if ratio[1].any()}
    metrics = {entry.name: entry.metric for entry in SCORES if entry.task == task and entry.metric}
    intervals = {name: _of_sums(metric, rows) for name, metric in metrics.items()}
    found |= {name: ends for name, ends in intervals.items() if not math.isnan(ends[0])}
    return {**found, "confidence": CONFIDENCE, "resamples": RESAMPLES}


def _of_sums(metric: Metric, rows: Any) -> list[float]:
    import numpy as np

    columns, random = metric.columns(rows), np.random.default_rng(SEED)
    count, block = len(columns), max(BLOCK // len(columns), 1)
    drawn: list[Floats] = []
    for start in range(0, RESAMPLES, block):
        times = random.multinomial(count, np.full(count, 1 / count), size=min(block, RESAMPLES - start))
        drawn.append(metric.of_sums(np.einsum("sr,rk->sk", times.astype(np.float64), columns), count))
    return interval(np.concatenate(drawn))


def _of_resamples(task: str, matrix: Ints) -> Meta:
    import numpy as np

    functions = {entry.name: entry.of_matrices for entry in SCORES if entry.task == task and entry.of_matrices}
    random, rows = np.random.default_rng(SEED), int(matrix.sum())
    block = max(BLOCK // matrix.size, 1)
    drawn: dict[str, list[Floats]] = {name: [] for name in functions}
    for start in range(0, RESAMPLES, block):
        cells = random.multinomial(rows, matrix.ravel() / rows, size=min(block, RESAMPLES - start))
        matrices = Matrices(cells.reshape(-1, *matrix.shape))
        for name, function in functions.items():
            drawn[name].append(function(matrices))
    return {name: interval(np.concatenate(values)) for name, values in drawn.items()}


def majority(training: Ints, found: ClassPredictions, classes: int) -> dict[str, float]:
    """Return accuracy and weighted F1 of predicting the most frequent class of `training`, int64 [rows], for every
    row."""
    import numpy as np

    answers = np.full_like(found.expected, np.bincount(training, minlength=classes).argmax())
    always = found._replace(predicted=answers)
    return {entry.name: float(entry.function(always) or 0.0) for entry in (accuracy, f1_weighted)}
